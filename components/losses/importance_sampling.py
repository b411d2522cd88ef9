"""Importance-weighted policy gradient without a clip."""

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


@register("loss", "importance_sampling")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceSampling:
    """Unclipped importance-sampling surrogate, per token, [B, L].

        loss = -rho A,  rho = exp(d),  d = clip(l - l_old, -c, c),  c = log_ratio_clamp

    Masked positions get 0. Metrics: approx_kl = exp(d) - 1 - d.

    Source: the surrogate of TRPO 1502.05477, per token.
    """

    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats; tokens beyond it get no gradient."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        return TokenLoss(-clamped.exp() * where0(mask, batch["advantage"]), {"approx_kl": approx_kl(clamped)})
