"""Shared parts of the KL estimators: the clamped log-ratio and the choice of gradient."""

from __future__ import annotations

from typing import Literal

import torch

__all__ = ["Gradient", "clamped_difference", "estimate"]

Gradient = Literal["pathwise", "straight_through_k2"]
"""``pathwise``: the estimator's own derivative. ``straight_through_k2``: the estimator's value, the
gradient of k2."""


def clamped_difference(logprob: torch.Tensor, ref_logprob: torch.Tensor, clamp: float) -> torch.Tensor:
    """Returns ``clip(logprob - ref_logprob, -clamp, clamp)``; gradient 0 beyond, none for ref_logprob."""
    return (logprob - ref_logprob.detach()).clamp(-clamp, clamp)


def estimate(
    value: torch.Tensor, difference: torch.Tensor, gradient: Gradient, output_clamp: float
) -> torch.Tensor:
    """Returns ``value`` clamped to +-output_clamp, with the chosen gradient.

    Args:
        value: of the estimator, nats.
        difference: from clamped_difference, nats, of the same shape.
        gradient: with straight_through_k2, d value / d logprob is ``difference``, without output_clamp.
        output_clamp: bound of the value, nats.
    """
    value = value.clamp(-output_clamp, output_clamp)
    if gradient == "pathwise":
        return value
    k2 = difference.square() / 2
    return value.detach() + (k2 - k2.detach())
