"""Divergence PPO with the binary KL divergence as its trust region."""

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


@register("loss", "dppo_kl")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPOKL:
    """Returns the policy gradient kept inside a KL trust region of {this token, any other}, [B, L].

        loss = -sg(min(rho, ratio_cap) keep) A l,  p = exp(l),  q = exp(l_old)
        K    = q (l_old - l) + (1 - q) log( (1 - q + 1e-8) / (1 - p + 1e-8) )
        keep = K <= high or p <= q   where A > 0
               K <= low  or p >= q   elsewhere

    rho = exp(clip(l - l_old, -20, 20)); keep carries no gradient. Masked places get 0.
    Metrics: clip_fraction (not keep), approx_kl.

    Source: DPPO 2602.04879. "The behaviour policy" is old_logprob: use the two-policy mode to compare with
    the sampler.
    """

    low: float = 0.05
    """Largest K of a token whose probability falls, nats, > 0."""
    high: float = 0.05
    """Largest K of a token whose probability rises, nats, > 0."""
    ratio_cap: float = 20.0
    """Cap of the ratio, >= 1."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")

    def __post_init__(self) -> None:
        check_range(self, "low", "(0, inf)")
        check_range(self, "high", "(0, inf)")
        check_range(self, "ratio_cap", "[1, inf)")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob, old_logprob = where0(mask, policy.logprob), where0(mask, batch["old_logprob"])
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(logprob.detach(), old_logprob, mask)
        ratio = clamped.exp()
        # -expm1(l) is 1 - p without its rounding near p = 1.
        rest, old_rest = -torch.expm1(logprob.detach()), -torch.expm1(old_logprob)
        divergence = old_logprob.exp() * (old_logprob - logprob.detach())
        divergence = divergence + old_rest * ((old_rest + 1e-8) / (rest + 1e-8)).log()
        risen = logprob.detach() > old_logprob
        fallen = logprob.detach() < old_logprob
        keep = torch.where(
            advantage > 0, (divergence <= self.high) | ~risen, (divergence <= self.low) | ~fallen
        )
        loss = -where0(keep, ratio.clamp(max=self.ratio_cap)) * advantage * logprob
        return TokenLoss(loss, {"clip_fraction": (~keep).float(), "approx_kl": approx_kl(clamped)})
