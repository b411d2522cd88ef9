"""Covariance of advantage and log-prob inside a group, and the tokens of a group where it is largest.

Groups are found by comparing rows with rows, [B, B]: no unique(), no shape that depends on data, so it
compiles.
"""

from __future__ import annotations

import torch

from titanrl.ops.masked import where0

__all__ = ["group_covariance", "largest_in_group", "same_group"]


def same_group(group_id: torch.Tensor) -> torch.Tensor:
    """Returns [B, B] bool, true where two rows belong to one group."""
    return group_id[:, None] == group_id[None, :]


def _group_sum(row_value: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    """Returns [B, 1] the sum of ``row_value`` [B, 1] over the rows of each row's group."""
    return where0(same, row_value[:, 0]).sum(-1, keepdim=True)


def group_covariance(
    advantage: torch.Tensor, logprob: torch.Tensor, mask: torch.Tensor, group_id: torch.Tensor
) -> torch.Tensor:
    """Returns [B, L] float64 ``(A - mean A)(l - mean l)``, means over the loss tokens of the group.

    Without gradient; 0 where masked. In float64, so that a group of equal advantages has a covariance of
    exactly 0.
    """
    same = same_group(group_id)
    count = _group_sum(mask.sum(-1, keepdim=True), same).clamp_min(1)

    def centered(x: torch.Tensor) -> torch.Tensor:
        x = where0(mask, x.detach()).double()
        return x - _group_sum(x.sum(-1, keepdim=True), same) / count

    return where0(mask, centered(advantage) * centered(logprob))


def largest_in_group(
    score: torch.Tensor, candidate: torch.Tensor, fraction: float, mask: torch.Tensor, group_id: torch.Tensor
) -> torch.Tensor:
    """Returns [B, L] bool: the ``max(1, floor(fraction * n))`` candidates of largest score in each group.

    Args:
        score: [B, L].
        candidate: [B, L] bool, the tokens to choose from; a group with fewer gives all of them.
        fraction: in (0, 1]. Ties go to the first token in row-major order.
        mask: [B, L] bool, loss_mask; n is its count over the group.
        group_id: [B].
    """
    rows, length = score.shape
    same = same_group(group_id)
    limit = (_group_sum(mask.sum(-1, keepdim=True), same).double() * fraction).floor().clamp_min(1)
    # The group's first row identifies it; tokens are ranked by (group, score, position) in two stable sorts.
    segment = same.int().argmax(-1, keepdim=True)
    tokens_before = (segment[:, 0][None, :] < segment).sum(-1, keepdim=True) * length
    segment = segment.expand(rows, length).flatten()
    order = torch.where(candidate, score, -torch.inf).flatten().argsort(descending=True, stable=True)
    order = order[segment[order].argsort(stable=True)]
    positions = torch.arange(rows * length, device=score.device)
    rank = torch.zeros_like(positions).scatter(0, order, positions).view(rows, length) - tokens_before
    return candidate & (rank < limit)
