"""Micro-batches: assignment of rows, and the layout of packed sequences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.unit.engine.conftest import make_batch
from titanrl.engine.packing import MicroBatch, assign_micro_batches, dummy_micro_batch, pack_sequences, pad_to

CPU = torch.device("cpu")


def visibility(micro_batch: MicroBatch) -> torch.Tensor:
    """Returns [T, T] bool, whether a token (row) sees a token (column)."""
    number = torch.arange(micro_batch.tokens.shape[1])
    return (number[:, None] >= number) & (number[:, None] < micro_batch.visible_until)


def assert_rows_are_complete(batch: TensorDict, micro_batch: MicroBatch) -> None:
    """Each loss token is predicted from a token that sees exactly its row up to that position."""
    width = micro_batch.batch["labels"].shape[1]
    sees = visibility(micro_batch)
    for token, place in zip(
        micro_batch.gather_index.tolist(), micro_batch.scatter_index.tolist(), strict=True
    ):
        row, position = divmod(place, width)
        expected = batch["input_ids"][micro_batch.rows[row], : position + 1]
        assert micro_batch.tokens[0, sees[token]].tolist() == expected.tolist()
        assert micro_batch.positions[0, sees[token]].tolist() == list(range(position + 1))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    max_tokens=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_assign_micro_batches_keeps_groups_whole_within_the_budget(
    sizes: list[int], max_tokens: int, seed: int
) -> None:
    group_id = torch.repeat_interleave(torch.arange(len(sizes)) * 3, torch.tensor(sizes))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(len(group_id), 6, generator=generator) < 0.3
    ids = torch.randint(2, (len(group_id), 6), generator=generator)
    batch = TensorDict({"input_ids": ids, "loss_mask": mask, "group_id": group_id}, batch_size=[len(ids)])
    parts = assign_micro_batches(batch, max_tokens)
    recorded = torch.cat(parts).tolist() if parts else []
    live = [row for row in range(len(group_id)) if mask[group_id == group_id[row]].any()]
    assert sorted(recorded) == live
    for part in parts:
        groups = group_id[part].unique()
        assert len(part) == sum(int((group_id == group).sum()) for group in groups)
        assert pack_sequences(batch, part, CPU).tokens.numel() <= max_tokens + len(part) or len(groups) == 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    length=st.integers(1, 9),
    density=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_packing_computes_each_distinct_prefix_once(
    sizes: list[int], length: int, density: float, seed: int
) -> None:
    """Two token ids give rows that diverge anywhere, are prefixes of each other, or are equal."""
    generator = torch.Generator().manual_seed(seed)
    group_id = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    ids = torch.randint(2, (len(group_id), length), generator=generator)
    mask = torch.rand(ids.shape, generator=generator) < density
    batch = TensorDict(
        {"input_ids": ids, "labels": ids, "loss_mask": mask, "group_id": group_id}, batch_size=[len(ids)]
    )
    micro_batch = pack_sequences(batch, torch.arange(len(ids)), CPU)
    last = [int(row.nonzero().max()) + 1 if row.any() else 0 for row in mask]
    distinct = {
        (int(group), *row[:end].tolist())
        for group, row, stop in zip(group_id, ids, last, strict=True)
        for end in range(1, stop + 1)
    }
    assert micro_batch.num_tokens == max(1, len(distinct))
    assert len(micro_batch.gather_index) == max(1, int(mask.sum()))
    if mask.any():
        assert_rows_are_complete(batch, micro_batch)


def test_packing_computes_shared_turns_once() -> None:
    """A conversation cut after each turn, and a second one that diverges after the first turn."""
    conversation, other = list(range(10, 22)), [*range(10, 15), *range(30, 37)]
    ids = torch.tensor([conversation, other, conversation, conversation])
    mask = torch.zeros(4, 12, dtype=torch.bool)
    for row, turn in enumerate(([2, 3], [9, 10], [6, 7], [9, 10, 11])):
        mask[row, turn] = True
    batch = TensorDict(
        {"input_ids": ids, "labels": ids, "loss_mask": mask, "group_id": torch.zeros(4, dtype=torch.int64)},
        batch_size=[4],
    )
    micro_batch = pack_sequences(batch, torch.arange(4), CPU)
    assert micro_batch.num_tokens == 12 + 6
    assert_rows_are_complete(batch, micro_batch)


def test_row_without_loss_tokens_adds_no_computation() -> None:
    batch = make_batch()
    before = pack_sequences(batch, torch.arange(4), CPU)
    for row in range(4):
        dead = batch.clone()
        dead["loss_mask"][row] = False
        own = int(batch["loss_mask"][row].sum()) - 1
        assert pack_sequences(dead, torch.arange(4), CPU).num_tokens == before.num_tokens - own


def test_packing_selects_the_hidden_states_of_loss_tokens() -> None:
    batch = make_batch()
    micro_batch = pack_sequences(batch, torch.arange(4, 9), CPU)
    mask = batch["loss_mask"][4:9, : micro_batch.batch["loss_mask"].shape[1]]
    assert (
        micro_batch.tokens[0, micro_batch.gather_index].tolist()
        == micro_batch.batch["input_ids"][mask].tolist()
    )
    positions = mask.nonzero()[:, 1]
    assert micro_batch.positions[0, micro_batch.gather_index].tolist() == positions.tolist()


def test_packing_shares_no_prefix_between_groups() -> None:
    batch = make_batch()
    length = batch["loss_mask"].sum(1) + 11
    batch["group_id"] = torch.arange(len(batch))
    micro_batch = pack_sequences(batch, torch.arange(3), CPU)
    assert micro_batch.num_tokens == int(length[:3].sum())
    assert_rows_are_complete(batch, micro_batch)


def test_assign_micro_batches_splits_a_large_group_if_rows_are_not_compared() -> None:
    """Each part has a copy of the prompt; rows with longer shared prefixes stay together."""
    prompt, ids = [1] * 6, torch.zeros(6, 10, dtype=torch.int64)
    for row, answer in enumerate(
        ([5, 5, 5, 5], [7, 7, 7, 7], [5, 5, 5, 6], [8, 8, 8, 8], [7, 7, 9, 9], [3] * 4)
    ):
        ids[row] = torch.tensor(prompt + answer)
    mask = torch.arange(10).expand(6, -1) >= 5
    batch = TensorDict(
        {"input_ids": ids, "labels": ids, "loss_mask": mask, "group_id": torch.zeros(6, dtype=torch.int64)},
        batch_size=[6],
    )
    assert [part.tolist() for part in assign_micro_batches(batch, 15)] == [[0, 1, 2, 3, 4, 5]]
    parts = assign_micro_batches(batch, 15, split_groups=True)
    assert [part.tolist() for part in parts] == [[0, 2, 5], [1, 4], [3]]
    assert [pack_sequences(batch, part, CPU).num_tokens for part in parts] == [15, 12, 10]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    max_tokens=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_assigned_micro_batches_hold_each_row_once_within_the_budget(
    sizes: list[int], max_tokens: int, seed: int
) -> None:
    group_id = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(len(group_id), 6, generator=generator) < 0.3
    ids = torch.randint(2, (len(group_id), 6), generator=generator)
    batch = TensorDict({"input_ids": ids, "loss_mask": mask, "group_id": group_id}, batch_size=[len(ids)])
    parts = assign_micro_batches(batch, max_tokens, split_groups=True)
    rows = [row for part in parts for row in part.tolist()]
    assert len(rows) == len(set(rows))
    assert set(mask.any(1).nonzero().squeeze(1).tolist()) <= set(rows)
    for part in parts:
        assert pack_sequences(batch, part, CPU).num_tokens <= max_tokens or int(mask[part].any(1).sum()) == 1


def test_pad_to_leaves_real_tokens_where_they_are() -> None:
    micro_batch = pack_sequences(make_batch(), torch.arange(4), CPU)
    old = micro_batch.tokens.shape[1]
    padded = pad_to(micro_batch, old + 70)
    assert padded.tokens.shape == padded.positions.shape == (1, old + 70)
    assert visibility(padded)[:old, :old].equal(visibility(micro_batch))
    assert visibility(padded)[old:].equal(torch.eye(old + 70, dtype=torch.bool)[old:])


def test_dummy_micro_batch_has_no_loss_tokens() -> None:
    micro_batch = dummy_micro_batch(make_batch(), CPU)
    assert micro_batch.tokens.shape == (1, 1)
    assert len(micro_batch.batch) == 2, "losses on pairs refuse an odd number of rows"
    assert len(micro_batch.rows) == 0
    assert not micro_batch.batch["loss_mask"].any()
    assert len(micro_batch.gather_index) == 1
