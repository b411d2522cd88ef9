"""Padding of a batch on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["concatenate", "trim"]


def trim(batch: TensorDict, length: int) -> TensorDict:
    """Returns the batch with every [N, L] key padded with zeros, or cut, to ``length`` label positions."""
    _, current = batch["loss_mask"].shape
    if current == length:
        return batch
    result = batch.copy()
    for key, value in batch.items(include_nested=True, leaves_only=True):
        if isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[1] == current:
            cut = value[:, :length]
            padding = cut.new_zeros((value.shape[0], max(length - current, 0), *value.shape[2:]))
            result[key] = torch.cat([cut, padding], dim=1)
    return result


def concatenate(batches: Sequence[TensorDict]) -> TensorDict:
    """Returns the rows of several batches with the same keys, padded to the longest."""
    if len(batches) == 1:
        return batches[0]
    length = max(batch["loss_mask"].shape[1] for batch in batches)
    result: TensorDict = torch.cat([trim(batch, length) for batch in batches])
    return result
