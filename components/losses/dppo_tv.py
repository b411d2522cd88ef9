"""DPPO-TV: policy gradient inside a trust region on the change of a token's probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.trust_region import kept_policy_gradient, tokens_of
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs, TokenLoss


@register("loss", "dppo_tv")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPOTV:
    """Policy gradient restricted to a total-variation trust region, per token, [B, L].

        loss = -sg(min(rho, ratio_cap) keep) A l,  p = exp(l),  q = exp(l_old)
        keep = p - q <= high   where A > 0
               p - q >= -low   elsewhere

    rho = exp(clip(l - l_old, -20, 20)); keep carries no gradient. Where rho <= ratio_cap the gradient is
    that of -keep rho A. Masked positions get 0. Metrics: clip_fraction (not keep), approx_kl.

    Source: DPPO 2602.04879. The paper's behaviour policy is old_logprob here; to use the sampler's
    log-probs, set [algorithm] old_logprob = "sampler".
    """

    low: Annotated[float, Range("(0, 1]")] = 0.2
    """Largest decrease of a token's probability."""
    high: Annotated[float, Range("(0, 1]")] = 0.2
    """Largest increase of a token's probability."""
    ratio_cap: Annotated[float, Range("[1, inf)")] = 20.0
    """Upper bound of the ratio."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        tokens = tokens_of(policy.logprob, batch)
        rise = tokens.logprob.exp() - tokens.old_logprob.exp()
        keep = torch.where(tokens.advantage > 0, rise <= self.high, rise >= -self.low)
        return kept_policy_gradient(policy.logprob, tokens, keep, self.ratio_cap, batch["loss_mask"])
