"""Masked sums and means. Masked positions may hold anything, even NaN: they are replaced first."""

from __future__ import annotations

import torch

__all__ = ["masked_mean", "masked_sum", "where0", "whiten"]


def where0(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns ``x`` where ``mask`` is true and exactly 0 elsewhere; no gradient reaches masked positions."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(
    x: torch.Tensor, mask: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> torch.Tensor:
    """Returns the sum of ``x`` over the positions where ``mask`` is true; 0 where there are none."""
    x = where0(mask, x)
    return x.sum() if dim is None else x.sum(dim, keepdim=keepdim)


def masked_mean(
    x: torch.Tensor, mask: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> torch.Tensor:
    """Returns the mean of ``x`` over the positions where ``mask`` is true; 0 where there are none."""
    count = mask.sum() if dim is None else mask.sum(dim, keepdim=keepdim)
    return masked_sum(x, mask, dim, keepdim) / count.clamp_min(1)


def whiten(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns ``(x - mean) / sqrt(var + 1e-8)`` over unmasked positions, var unbiased; 0 elsewhere.

    Moments are taken in float64. Fewer than two positions, or all of them equal: 0 everywhere.

    Args:
        x: [...] float.
        mask: same shape, bool.
    """
    value = where0(mask, x).double()
    count = mask.sum()
    mean = value.sum() / count.clamp_min(1)
    centered = where0(mask, value - mean)
    var = centered.square().sum() / (count - 1).clamp_min(1)
    low = torch.where(mask, value, torch.inf).amin() if x.numel() else count
    high = torch.where(mask, value, -torch.inf).amax() if x.numel() else count
    is_constant = (count < 2) | (low == high)
    return torch.where(is_constant, 0.0, centered / (var + 1e-8).sqrt()).to(x.dtype)
