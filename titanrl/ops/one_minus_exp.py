"""What is left of a probability, to all digits."""

from __future__ import annotations

import torch

__all__ = ["one_minus_exp"]


def one_minus_exp(logprob: torch.Tensor) -> torch.Tensor:
    """Returns ``1 - exp(logprob)`` without the rounding of that difference near probability 1.

    As ``(1 + exp(x)) tanh(-x / 2)``: expm1 would do, but the vectorised code of torch 2.13's compiler
    computes it as ``exp(x) - 1``, of which 5% is noise at x = -1e-6.
    """
    return (1 + logprob.exp()) * torch.tanh(-logprob / 2)
