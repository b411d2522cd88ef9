"""Optimizer steps and rank shares: whole groups, every row once, the same on every rank."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from titanrl.algorithm.minibatches import minibatches
from titanrl.engine.collectives import shard_batch


def batch(sizes: list[int], length: int = 6) -> TensorDict:
    group_id = torch.cat([torch.full((size,), 7 * group) for group, size in enumerate(sizes)])
    n = len(group_id)
    lengths = torch.randint(1, length + 1, (n,), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length) < lengths[:, None]
    ids = torch.where(mask, 3, 0)
    return TensorDict(
        {"group_id": group_id, "row_id": torch.arange(n), "loss_mask": mask, "input_ids": ids}, batch_size=[n]
    )


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_epoch_holds_every_row_once_in_whole_groups(count):
    whole = batch([4, 1, 3, 2, 4])
    parts = list(minibatches(whole, count=count, epochs=2, seed=0, step=3))
    assert len(parts) == 2 * count
    for epoch in (parts[:count], parts[count:]):
        assert sorted(row for part in epoch for row in part["row_id"].tolist()) == list(range(14))
        groups = [set(part["group_id"].tolist()) for part in epoch]
        assert sum(len(group) for group in groups) == 5


def test_fewer_groups_than_minibatches_gives_no_empty_part():
    parts = list(minibatches(batch([2, 2]), count=4, epochs=1, seed=0, step=0))
    assert [len(part) for part in parts] == [2, 2]


def test_order_depends_on_seed_step_and_epoch_alone():
    def order(seed: int, step: int) -> list[int]:
        return [
            row
            for part in minibatches(batch([1] * 8), count=4, epochs=1, seed=seed, step=step)
            for row in part["row_id"]
        ]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_shares_hold_every_row_once_whole_groups_and_balanced_tokens(degree):
    whole = batch([3, 2, 4, 1, 3, 2])
    shares = [shard_batch(whole, rank, degree) for rank in range(degree)]
    assert sorted(row for part in shares for row in part["row_id"].tolist()) == list(range(15))
    owners = [set(part["group_id"].tolist()) for part in shares]
    assert sum(len(owner) for owner in owners) == 6
    tokens = [int(part["loss_mask"].sum()) for part in shares]
    assert max(tokens) - min(tokens) <= 12, "no further from even than the largest group"
