"""Divergence PPO: a token is dropped when its probability, not its ratio, moved too far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.masked import where0
from titanrl.ops.ratio import approx_kl, clamped_log_ratio
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "dppo_tv")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPOTV:
    """Returns the policy gradient kept inside a total-variation trust region, [B, L].

        loss = -sg(min(rho, ratio_cap) keep) A l,  p = exp(l),  q = exp(l_old)
        keep = p - q <= high   where A > 0
               p - q >= -low   elsewhere

    rho = exp(clip(l - l_old, -20, 20)); keep carries no gradient. Where rho <= ratio_cap the gradient is
    that of -keep rho A. Masked places get 0. Metrics: clip_fraction (not keep), approx_kl.

    Source: DPPO 2602.04879. "The behaviour policy" is old_logprob: use the two-policy mode to compare with
    the sampler.
    """

    low: float = 0.2
    """Largest fall of a token's probability, in (0, 1]."""
    high: float = 0.2
    """Largest rise of a token's probability, in (0, 1]."""
    ratio_cap: float = 20.0
    """Cap of the ratio, >= 1."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")

    def __post_init__(self) -> None:
        check_range(self, "low", "(0, 1]")
        check_range(self, "high", "(0, 1]")
        check_range(self, "ratio_cap", "[1, inf)")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob, old_logprob = where0(mask, policy.logprob), where0(mask, batch["old_logprob"])
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(logprob.detach(), old_logprob, mask)
        ratio = clamped.exp()
        rise = logprob.detach().exp() - old_logprob.exp()
        keep = torch.where(advantage > 0, rise <= self.high, rise >= -self.low)
        loss = -where0(keep, ratio.clamp(max=self.ratio_cap)) * advantage * logprob
        return TokenLoss(loss, {"clip_fraction": (~keep).float(), "approx_kl": approx_kl(clamped)})
