"""Minibatches: the parts of a batch, one per optimizer step, of complete groups shuffled by the seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDict

__all__ = ["minibatches"]


def minibatches(batch: TensorDict, *, count: int, epochs: int, seed: int, step: int) -> Iterator[TensorDict]:
    """Yields ``epochs * count`` parts of the global batch, the same on every rank.

    A single part per epoch keeps the order of the batch; several parts are shuffled in each epoch. Parts
    consist of complete groups, their numbers of groups differ by at most one, and no part is empty.

    Args:
        batch: the rows of all ranks, with group_id.
        count: parts per epoch; fewer if there are fewer groups.
        epochs: passes over the batch.
        seed: seed of the run.
        step: number of the training step, from 0.
    """
    _, inverse = torch.unique_consecutive(batch["group_id"], return_inverse=True)
    groups = int(inverse[-1]) + 1
    for epoch in range(epochs):
        if count == 1:
            yield batch
            continue
        generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 1_009 + epoch) % 2**63)
        order = torch.randperm(groups, generator=generator)
        for part in range(min(count, groups)):
            selected = order[groups * part // min(count, groups) : groups * (part + 1) // min(count, groups)]
            yield batch[torch.isin(inverse, selected)]
