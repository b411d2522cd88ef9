"""What the rows of a group share, and how many distinct tokens a group has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["group_tokens", "shared_prefix", "trained_lengths"]


def trained_lengths(mask: torch.Tensor) -> torch.Tensor:
    """Returns [N] int64, the last trainable position + 1; 0 on a fully masked row.

    What comes after it changes nothing that is trained.

    Args:
        mask: [N, L] bool, loss_mask.
    """
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * position).amax(1) if mask.shape[1] else position.new_zeros(len(mask))


def shared_prefix(input_ids: torch.Tensor, group_id: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Returns [N] int64, tokens at the start of a row that all rows of its group have; 0 for a group of one.

    Args:
        input_ids: [N, L] int64. group_id: [N] int64, in any order.
        length: [N] int64, tokens of each row that count; a row of length 0 doesn't shorten what its group
            shares, unless it begins otherwise.
    """
    row = torch.arange(len(group_id))
    _, group, count = torch.unique(group_id, return_inverse=True, return_counts=True)
    first = row.new_full(count.shape, len(row)).scatter_reduce(0, group, row, "amin")
    equal = (input_ids == input_ids[first[group]]).long().cumprod(1).sum(1)
    equal = torch.where(length > 0, equal.minimum(length), equal)
    shared = equal.new_full(count.shape, input_ids.shape[1]).scatter_reduce(0, group, equal, "amin")
    return torch.where(count > 1, shared, 0)[group]


def group_tokens(batch: TensorDict) -> tuple[list[torch.Tensor], list[int]]:
    """Returns each group's row numbers and its number of distinct tokens, groups in the batch's order.

    Tokens count up to the last trained one of each row: what it costs to compute the group's prompt once and
    each of its answers; 0 if it trains nothing.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id, in any order.
    """
    length = trained_lengths(batch["loss_mask"])
    shared = shared_prefix(batch["input_ids"], batch["group_id"], length)
    _, group, count = torch.unique(batch["group_id"], return_inverse=True, return_counts=True)
    own = torch.where(length > 0, length - shared, 0)
    tokens = torch.zeros_like(count).index_add(0, group, own)
    once = torch.zeros_like(count).scatter_reduce(0, group, torch.where(length > 0, shared, 0), "amax")
    rows = torch.split(torch.argsort(group, stable=True), count.tolist())
    found = sorted(zip(rows, (tokens + once).tolist(), strict=True), key=lambda pair: int(pair[0][0]))
    return [numbers for numbers, _ in found], [cost for _, cost in found]
