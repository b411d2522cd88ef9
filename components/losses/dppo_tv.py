"""DPPO-TV: policy gradient inside a trust region on the change of a token's probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.ratio import clamped_log_ratio
from titanrl.ops.trust_region import kept_policy_gradient, tokens_of
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "dppo_tv")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPOTV:
    """Policy gradient restricted to a total-variation trust region, per token, [B, L].

        loss = -sg(min(rho, ratio_cap) keep) A l + penalty d^2,  p = exp(l),  q = exp(l_old)
        keep = p - q <= high   where A > 0
               p - q >= -low   elsewhere;   symmetric: both, whatever the sign of A

    d = clip(l - l_old, -20, 20), rho = exp(d); keep carries no gradient, and the penalty applies to every
    loss token. Where rho <= ratio_cap, the gradient of the first term is that of -keep rho A. Masked
    positions get 0. Metrics: clip_fraction (not keep), approx_kl.

    Source: DPPO 2602.04879; symmetric region and penalty Kimi K2.5 2602.02276. The paper's behaviour policy
    is old_logprob here; to use the sampler's log-probs, set [algorithm] old_logprob = "sampler".
    """

    low: Annotated[float, Range("(0, 1]")] = 0.2
    """Largest decrease of a token's probability."""
    high: Annotated[float, Range("(0, 1]")] = 0.2
    """Largest increase of a token's probability."""
    ratio_cap: Annotated[float, Range("[1, inf)")] = 20.0
    """Upper bound of the ratio."""
    symmetric: bool = False
    """Whether both bounds hold for every sign of the advantage."""
    penalty: Annotated[float, Range("[0, inf)")] = 0.0
    """Coefficient of the squared log-ratio."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")

    @property
    def is_zero_without_advantage(self) -> bool:
        return self.penalty == 0

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        tokens = tokens_of(policy.logprob, batch)
        rise = tokens.logprob.exp() - tokens.old_logprob.exp()
        if self.symmetric:
            keep = (rise <= self.high) & (rise >= -self.low)
        else:
            keep = torch.where(tokens.advantage > 0, rise <= self.high, rise >= -self.low)
        mask = batch["loss_mask"]
        result = kept_policy_gradient(policy.logprob, tokens, keep, self.ratio_cap, mask)
        if not self.penalty:
            return result
        distance = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask)
        return TokenLoss(result.loss + self.penalty * distance.square(), result.metrics)
