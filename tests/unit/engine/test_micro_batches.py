"""Rows are split into micro-batches, and results, sums and norms are those of the whole batch."""

from __future__ import annotations

import pytest
import torch

import titanrl
from tests.unit.engine.one_weight import NO_TERMS, OneWeight, OneWeightModel, rows_of
from titanrl.algorithm.metrics import means
from titanrl.algorithm.objective import Objective
from titanrl.engine.packing import assign_micro_batches, pack_sequences

CPU = torch.device("cpu")
SUPERVISED = Objective(loss=titanrl.build("loss", {"name": "sft"}))

# ------------------------------------------------------------------- order of rows


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 100])
def test_values_are_returned_in_row_order(max_tokens: int) -> None:
    """Row i has the value i + 1 everywhere; packing by length reorders the rows (verl #431)."""
    batch = rows_of([1, 2, 3], lengths=[1, 3, 2])
    value = OneWeightModel(head="value", max_tokens=max_tokens).score(batch, ("value",))["value"]
    assert value.sum(1).tolist() == [1, 6, 6]
    assert torch.equal(value != 0, batch["loss_mask"])


@pytest.mark.parametrize("max_tokens", [1, 3, 100])
def test_entropy_is_averaged_with_the_length_of_its_own_row(max_tokens: int) -> None:
    batch = rows_of([1, 2, 3], lengths=[3, 1, 2])
    model = OneWeight(max_tokens=max_tokens)
    assert model.score(batch, ("entropy",))["entropy"].sum(1).tolist() == [3, 2, 6]
    actual = means(model.measure(batch, SUPERVISED, NO_TERMS))
    assert actual["loss/entropy"] == pytest.approx(11 / 6)


# ---------------------------------------------- dummy micro-batches, sums and norms


@pytest.mark.parametrize(("rows", "dummies"), [(2, 2), (3, 1), (4, 0), (6, 0), (7, 0), (8, 0)])
def test_dummy_micro_batches_fill_up_to_the_pipeline_stages(rows: int, dummies: int) -> None:
    """Reported as TorchTitan #775: fewer micro-batches than stages hang."""
    parts = OneWeightModel(pp=4).micro_batches(rows_of([1] * rows))
    assert [len(part.rows) for part in parts] == [1] * rows + [0] * dummies


@pytest.mark.parametrize(("rows", "dummies"), [(2, 2), (6, 2), (7, 1), (8, 0)])
def test_interleaved_stages_get_whole_rounds_of_micro_batches(rows: int, dummies: int) -> None:
    role = OneWeightModel(pp=4)
    role.model.stages = [None, None]
    parts = role.micro_batches(rows_of([1] * rows))
    assert [len(part.rows) for part in parts] == [1] * rows + [0] * dummies


@pytest.mark.parametrize(("tokens", "padding"), [(6, 2), (7, 1), (8, 0)])
def test_packed_sequence_is_padded_to_a_multiple_of_tensor_parallel_ranks(tokens: int, padding: int) -> None:
    (part,) = OneWeightModel(tp=4, max_tokens=100).micro_batches(rows_of([1], lengths=[tokens]))
    assert part.tokens.shape == (1, tokens + padding)


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
def test_every_micro_batch_is_in_the_gradient(max_tokens: int) -> None:
    model = OneWeight(lr=0.5, max_tokens=max_tokens)
    actual = model.update(rows_of([1, 2, 3]), SUPERVISED, NO_TERMS)
    assert actual["update/grad_norm"] == (6.0, 1.0)
    assert model.scoring_model.weight.item() == 1 + 0.5 * 6
    assert model.update(rows_of([1, 2]), SUPERVISED, NO_TERMS)["update/grad_norm"] == (3.0, 1.0)


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
def test_grad_norm_is_that_of_the_normalized_sum(max_tokens: int) -> None:
    batch = rows_of([1, 1, 1, 1])
    batch["loss_weight"] = titanrl.build("aggregation", {"name": "token_mean"})(
        batch["loss_mask"], batch["group_id"]
    )
    actual = OneWeight(max_tokens=max_tokens).update(batch, SUPERVISED, NO_TERMS)
    assert actual["update/grad_norm"] == (1.0, 1.0)


# ----------------------------------------------------------- content of a micro-batch


@pytest.mark.parametrize(("lengths", "columns"), [([3, 2], 3), ([4, 2], 4), ([1, 1], 1)])
def test_trimming_keeps_the_last_token_of_the_longest_row(lengths: list[int], columns: int) -> None:
    wide = rows_of([5, 6], lengths=[4, 4])
    wide["loss_mask"] = torch.arange(4) < torch.tensor(lengths)[:, None]
    part = pack_sequences(wide, torch.arange(2), CPU)
    assert part.batch["loss_mask"].shape == (2, columns)
    assert int(part.batch["loss_mask"].sum()) == sum(lengths)


def test_micro_batches_split_every_key_by_rows() -> None:
    batch = rows_of([1, 2, 3, 4], lengths=[3] * 4)
    batch["old_logprob"] = torch.arange(12.0).view(4, 3)
    batch["candidate_logprob"] = torch.arange(24.0).view(4, 3, 2)
    for rows, number in zip(assign_micro_batches(batch, 6), (0, 2), strict=True):
        part = pack_sequences(batch, rows, CPU).batch
        assert torch.equal(part["old_logprob"], batch["old_logprob"][number : number + 2])
        assert torch.equal(part["candidate_logprob"], batch["candidate_logprob"][number : number + 2])


def test_batch_refuses_a_leading_iteration_dimension() -> None:
    batch = rows_of([1, 2, 3, 4], lengths=[3] * 4)
    with pytest.raises(RuntimeError, match=r"torch.Size\(\[2, 4, 3\]\)"):
        batch["old_logprob"] = torch.zeros(2, 4, 3)
