"""DPPO-KL: policy gradient inside a trust region on the binary KL divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.one_minus_exp import one_minus_exp
from titanrl.ops.trust_region import kept_policy_gradient, tokens_of
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs, TokenLoss


@register("loss", "dppo_kl")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPOKL:
    """Policy gradient restricted to a KL trust region on {this token, any other token}, per token, [B, L].

        loss = -sg(min(rho, ratio_cap) keep) A l,  p = exp(l),  q = exp(l_old)
        K    = q (l_old - l) + (1 - q) log( (1 - q + 1e-8) / (1 - p + 1e-8) )
        keep = K <= high or p <= q   where A > 0
               K <= low  or p >= q   elsewhere

    rho = exp(clip(l - l_old, -20, 20)); keep carries no gradient. Masked positions get 0.
    Metrics: clip_fraction (not keep), approx_kl.

    Source: DPPO 2602.04879. The paper's behaviour policy is old_logprob here; to use the sampler's
    log-probs, set [algorithm] old_logprob = "sampler".
    """

    low: Annotated[float, Range("(0, inf)")] = 0.05
    """Largest K of a token whose probability falls, nats."""
    high: Annotated[float, Range("(0, inf)")] = 0.05
    """Largest K of a token whose probability rises, nats."""
    ratio_cap: Annotated[float, Range("[1, inf)")] = 20.0
    """Upper bound of the ratio."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

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
