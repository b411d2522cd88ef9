"""Probability ratios of two policies on the sampled tokens, and the clipped surrogate."""

from __future__ import annotations

import torch

from titanrl.ops.masked import where0

__all__ = ["LOG_RATIO_CLAMP", "approx_kl", "clamped_log_ratio", "clipped_surrogate", "log_ratio"]

LOG_RATIO_CLAMP = 20.0
"""Bound of a log-ratio before it is exponentiated, nats, for losses without a field for it."""


def log_ratio(logprob: torch.Tensor, other_logprob: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns [B, L] ``l - l_other``, 0 and without gradient where masked."""
    return where0(mask, logprob) - where0(mask, other_logprob)


def clamped_log_ratio(
    logprob: torch.Tensor, other_logprob: torch.Tensor, mask: torch.Tensor, clamp: float = LOG_RATIO_CLAMP
) -> torch.Tensor:
    """Returns [B, L] ``clip(l - l_other, -clamp, clamp)``, 0 where masked; gradient 0 beyond the bound."""
    return log_ratio(logprob, other_logprob, mask).clamp(-clamp, clamp)


def approx_kl(clamped: torch.Tensor) -> torch.Tensor:
    """Returns ``exp(d) - 1 - d`` of a clamped log-ratio: an estimate of KL(old || policy), no gradient."""
    clamped = clamped.detach()
    return torch.expm1(clamped) - clamped


def clipped_surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, clip_low: float, clip_high: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns PPO's surrogate and a mask of the tokens at which its clipped branch is active.

        min( min(rho, cap) A,  clip(rho, 1 - clip_low, 1 + clip_high) A )

    The clipped branch is active where it is strictly smaller, which depends on the sign of A: there the
    gradient is 0.
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    plain = (ratio if cap is None else ratio.clamp(max=cap)) * advantage
    is_clipped = clipped < plain
    return torch.where(is_clipped, clipped, plain), is_clipped
