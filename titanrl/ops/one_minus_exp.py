"""1 - exp(x) without cancellation."""

from __future__ import annotations

import torch

__all__ = ["one_minus_exp"]


def one_minus_exp(logprob: torch.Tensor) -> torch.Tensor:
    """Returns ``1 - exp(logprob)`` without the cancellation of that difference near probability 1.

    As ``(1 + exp(x)) tanh(-x / 2)``: expm1 would be enough, but the vectorized code of torch 2.13's
    compiler computes it as ``exp(x) - 1``, of which 5% is noise at x = -1e-6.
    """
    return (1 + logprob.exp()) * torch.tanh(-logprob / 2)
