"""Divergence PPO with the binary KL divergence as its trust region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.one_minus_exp import one_minus_exp
from titanrl.ops.trust_region import kept_policy_gradient, tokens_of
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs, TokenLoss


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
    is_zero_without_advantage: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self, "low", "(0, inf)")
        check_range(self, "high", "(0, inf)")
        check_range(self, "ratio_cap", "[1, inf)")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        tokens = tokens_of(policy.logprob, batch)
        logprob, old_logprob, advantage = tokens
        rest, old_rest = one_minus_exp(logprob), one_minus_exp(old_logprob)
        divergence = old_logprob.exp() * (old_logprob - logprob)
        divergence = divergence + old_rest * ((old_rest + 1e-8) / (rest + 1e-8)).log()
        may_rise = (divergence <= self.high) | (logprob <= old_logprob)
        may_fall = (divergence <= self.low) | (logprob >= old_logprob)
        keep = torch.where(advantage > 0, may_rise, may_fall)
        return kept_policy_gradient(policy.logprob, tokens, keep, self.ratio_cap, batch["loss_mask"])
