"""One batch -> the optimizer steps made of it: whole groups, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDict

__all__ = ["minibatches"]


def minibatches(batch: TensorDict, *, count: int, epochs: int, seed: int, step: int) -> Iterator[TensorDict]:
    """Yields ``epochs * count`` parts of the global batch, the same ones on every rank.

    One part an epoch keeps the batch's order; several are drawn again each epoch. Parts hold whole groups,
    their numbers of groups differ by at most one, and no part is empty.
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
            chosen = order[groups * part // min(count, groups) : groups * (part + 1) // min(count, groups)]
            yield batch[torch.isin(inverse, chosen)]
