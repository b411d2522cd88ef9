"""Quantiles of any number of values."""

from __future__ import annotations

import math

import torch

__all__ = ["quantile"]


def quantile(x: torch.Tensor, q: float) -> torch.Tensor:
    """Returns [] float64 the q-quantile of ``x`` [n] with linear interpolation; NaN for n = 0.

    By selection of two order statistics: torch.quantile refuses more than 2^24 elements.
    """
    if x.numel() == 0:
        return x.new_tensor(torch.nan, dtype=torch.float64)
    position = (x.numel() - 1) * q
    if abs(position - round(position)) < 1e-9 * x.numel():
        position = round(position)  # 1 - q and the product have rounded: the exact position is an element.
    below = math.floor(position)
    lower = x.kthvalue(below + 1).values.double()
    if position == below:
        return lower
    return torch.lerp(lower, x.kthvalue(below + 2).values.double(), position - below)
