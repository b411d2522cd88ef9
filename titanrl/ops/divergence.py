"""Divergences of categorical distributions given as log-probs of the same candidates, on the last dim."""

from __future__ import annotations

import torch

from titanrl.ops.masked import where0

__all__ = ["add_tail", "kl_divergence", "mixture"]

SMALLEST_TAIL = 1e-6
"""Floor of the tail's probability."""


def add_tail(logprob: torch.Tensor) -> torch.Tensor:
    """Returns [..., K + 1], the K log-probs and ``log max(1 - sum, 1e-6)`` of all other tokens."""
    tail = (1 - logprob.exp().sum(-1, keepdim=True)).clamp_min(SMALLEST_TAIL)
    return torch.cat([logprob, tail.log()], -1)


def kl_divergence(logp: torch.Tensor, logq: torch.Tensor) -> torch.Tensor:
    """Returns [...] ``sum p (log p - log q)`` over the last dim; terms with p = 0 (log-prob -inf) are 0."""
    valid = logp > -torch.inf
    p = logp.exp()
    return where0(valid, p * (where0(valid, logp) - where0(valid, logq))).sum(-1)


def mixture(logp: torch.Tensor, logq: torch.Tensor, weight: float) -> torch.Tensor:
    """Returns [..., K] ``log(weight p + (1 - weight) q)``."""
    total = weight * logp.exp() + (1 - weight) * logq.exp()
    return torch.where(total > 0, total, 1.0).log().masked_fill(total <= 0, -torch.inf)
