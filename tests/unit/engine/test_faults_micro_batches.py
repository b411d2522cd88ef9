"""Faults that users of other frameworks met on the way from rows to micro-batches and back; by number."""

from __future__ import annotations

import pytest
import torch

import titanrl
from tests.unit.engine.one_weight import NO_TERMS, OneWeight, OneWeightRole, rows_of
from titanrl.algorithm.metrics import means
from titanrl.algorithm.objective import Objective
from titanrl.engine.packing import assign_micro_batches, pack_sequences

CPU = torch.device("cpu")
SUPERVISED = Objective(loss=titanrl.build("loss", {"name": "sft"}))

# ------------------------------------------------------- 1 and 14: rows come back to their places


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 100])
def test_k1_22_values_come_back_to_their_rows(max_tokens: int) -> None:
    """Row i has the value i + 1 everywhere; packing by length takes the rows in another order."""
    batch = rows_of([1, 2, 3], lengths=[1, 3, 2])
    value = OneWeightRole(head="value", max_tokens=max_tokens).score(batch, ("value",))["value"]
    assert value.sum(1).tolist() == [1, 6, 6]
    assert torch.equal(value != 0, batch["loss_mask"])


@pytest.mark.parametrize("max_tokens", [1, 3, 100])
def test_k14_06_entropy_is_counted_with_its_own_rows_length(max_tokens: int) -> None:
    batch = rows_of([1, 2, 3], lengths=[3, 1, 2])
    model = OneWeight(max_tokens=max_tokens)
    assert model.score(batch, ("entropy",))["entropy"].sum(1).tolist() == [3, 2, 6]
    found = means(model.measure(batch, SUPERVISED, NO_TERMS))
    assert found["loss/entropy"] == pytest.approx(11 / 6)


# ---------------------------------------------------------------- 3: blanks, sums, norms


@pytest.mark.parametrize(("rows", "blanks"), [(2, 2), (3, 1), (4, 0), (6, 0), (7, 0), (8, 0)])
def test_k3_07_blanks_fill_up_to_the_stages_and_no_further(rows: int, blanks: int) -> None:
    parts = OneWeightRole(pp=4).micro_batches(rows_of([1] * rows))
    assert [len(part.rows) for part in parts] == [1] * rows + [0] * blanks


@pytest.mark.parametrize(("rows", "blanks"), [(2, 2), (6, 2), (7, 1), (8, 0)])
def test_k3_07_stages_that_take_turns_get_whole_rounds(rows: int, blanks: int) -> None:
    role = OneWeightRole(pp=4)
    role.model.stages = [None, None]
    parts = role.micro_batches(rows_of([1] * rows))
    assert [len(part.rows) for part in parts] == [1] * rows + [0] * blanks


@pytest.mark.parametrize(("tokens", "padding"), [(6, 2), (7, 1), (8, 0)])
def test_k3_07_lines_that_ranks_divide_are_not_padded(tokens: int, padding: int) -> None:
    (part,) = OneWeightRole(tp=4, max_tokens=100).micro_batches(rows_of([1], lengths=[tokens]))
    assert part.tokens.shape == (1, tokens + padding)


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
def test_k3_09_every_micro_batch_is_in_the_gradient(max_tokens: int) -> None:
    model = OneWeight(lr=0.5, max_tokens=max_tokens)
    found = model.update(rows_of([1, 2, 3]), SUPERVISED, NO_TERMS)
    assert found["update/grad_norm"] == (6.0, 1.0)
    assert model.role.weight.item() == 1 + 0.5 * 6
    assert model.update(rows_of([1, 2]), SUPERVISED, NO_TERMS)["update/grad_norm"] == (3.0, 1.0)


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
def test_k3_11_the_norm_is_that_of_the_normalised_sum(max_tokens: int) -> None:
    batch = rows_of([1, 1, 1, 1])
    batch["loss_weight"] = titanrl.build("aggregation", {"name": "token_mean"})(
        batch["loss_mask"], batch["group_id"]
    )
    found = OneWeight(max_tokens=max_tokens).update(batch, SUPERVISED, NO_TERMS)
    assert found["update/grad_norm"] == (1.0, 1.0)


# ------------------------------------------------------------ 9 and 17: what a micro-batch keeps


@pytest.mark.parametrize(("lengths", "columns"), [([3, 2], 3), ([4, 2], 4), ([1, 1], 1)])
def test_k9_10_the_longest_rows_last_token_is_kept(lengths: list[int], columns: int) -> None:
    wide = rows_of([5, 6], lengths=[4, 4])
    wide["loss_mask"] = torch.arange(4) < torch.tensor(lengths)[:, None]
    part = pack_sequences(wide, torch.arange(2), CPU)
    assert part.batch["loss_mask"].shape == (2, columns)
    assert part.num_trained == sum(lengths)


def test_k17_05_every_key_is_cut_by_rows() -> None:
    batch = rows_of([1, 2, 3, 4], lengths=[3] * 4)
    batch["old_logprob"] = torch.arange(12.0).view(4, 3)
    batch["candidate_logprob"] = torch.arange(24.0).view(4, 3, 2)
    for rows, number in zip(assign_micro_batches(batch, 6), (0, 2), strict=True):
        part = pack_sequences(batch, rows, CPU).batch
        assert torch.equal(part["old_logprob"], batch["old_logprob"][number : number + 2])
        assert torch.equal(part["candidate_logprob"], batch["candidate_logprob"][number : number + 2])


def test_k17_05_numbers_of_iterations_are_no_rows() -> None:
    batch = rows_of([1, 2, 3, 4], lengths=[3] * 4)
    with pytest.raises(RuntimeError, match=r"torch.Size\(\[2, 4, 3\]\)"):
        batch["old_logprob"] = torch.zeros(2, 4, 3)
