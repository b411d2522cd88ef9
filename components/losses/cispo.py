"""CISPO: policy gradient under a clipped importance weight, which leaves clipped tokens their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "cispo")
@dataclass(frozen=True, slots=True, kw_only=True)
class CISPO:
    """Policy gradient weighted by the clipped importance ratio, per token, [B, L].

        loss = -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A l
        rho  = exp(clip(l - l_old, -c, c)),  c = log_ratio_clamp

    The weight carries no gradient, so every token keeps its policy gradient, also where the ratio is
    clipped; PPO drops those tokens. Masked positions get 0.
    Metrics: clip_fraction (the clip changed rho), approx_kl.

    Source: MiniMax-M1 2506.13585; ScaleRL 2510.13786.
    """

    clip_low: Annotated[float, Range("(0, 1]")] = 1.0
    """Distance of the lower bound of the ratio from 1; 1 removes the lower bound."""
    clip_high: Annotated[float, Range("(0, inf)")] = 4.0
    """Distance of the upper bound of the ratio from 1."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob = where0(mask, policy.logprob)
        clamped = clamped_log_ratio(logprob.detach(), batch["old_logprob"], mask, self.log_ratio_clamp)
        ratio = clamped.exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = -weight * where0(mask, batch["advantage"]) * logprob
        return TokenLoss(loss, {"clip_fraction": (weight != ratio).float(), "approx_kl": approx_kl(clamped)})
