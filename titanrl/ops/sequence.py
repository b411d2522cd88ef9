"""Sums, means and the last of a row's loss tokens."""

from __future__ import annotations

import torch

from titanrl.ops.masked import masked_sum, where0

__all__ = [
    "after_last_loss_token",
    "at_last_loss_token",
    "discounted_sum",
    "is_last_loss_token",
    "sequence_mean",
    "sequence_sum",
]


def is_last_loss_token(mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, L] bool, true at each row's last loss token; all false on a fully masked row.

    Args:
        mask: [N, L] bool, loss_mask.
    """
    position = torch.arange(mask.shape[-1], device=mask.device)
    return mask & (position == torch.where(mask, position, -1).amax(-1, keepdim=True))


def after_last_loss_token(mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, L + 1] bool, true one position after each row's last loss token.

    All false on a fully masked row.
    """
    return torch.nn.functional.pad(is_last_loss_token(mask), (1, 0))


def at_last_loss_token(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns [N] the value of ``x`` [N, L] at each row's last loss token; 0 on a fully masked row."""
    return masked_sum(x, is_last_loss_token(mask), -1)


def sequence_sum(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, 1] the sum of ``x`` [N, L] over each row's loss tokens.

    Summed in float64: long rows lose no digits, and the result does not depend on the order of addition,
    which compiler and processor choose.
    """
    return where0(mask, x).sum(-1, keepdim=True, dtype=torch.float64).to(x.dtype)


def sequence_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, 1] the mean of ``x`` [N, L] over each row's loss tokens; 0 on a fully masked row."""
    return sequence_sum(x, mask) / mask.sum(-1, keepdim=True).clamp_min(1)


def discounted_sum(x: torch.Tensor, mask: torch.Tensor, discount: float) -> torch.Tensor:
    """Returns [N, L] ``F_k = x_k + discount F_(k+1)`` over each row's loss tokens; 0 where masked.

    A parallel scan of 20 steps, whatever the length (up to 2^20), so that it compiles once. In float64.

    Args:
        x: [N, L] float, undefined where masked.
        mask: [N, L] bool, loss_mask.
        discount: in [0, 1].
    """
    total = where0(mask, x).double()
    # A span of positions maps the sum that follows it to total + factor * following; each step doubles it.
    factor = torch.where(mask, discount, 1.0).double()
    positions, length = torch.arange(mask.shape[1], device=mask.device), mask.shape[1]
    for step in range(20):
        later = positions + 2**step
        inside, later = later < length, later.clamp(max=length - 1)
        total = total + factor * where0(inside, total[:, later])
        factor = factor * torch.where(inside, factor[:, later], 1.0)
    return where0(mask, total).to(x.dtype)
