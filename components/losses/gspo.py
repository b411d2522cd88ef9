"""GSPO: group sequence policy optimisation, PPO's clip on one length-normalised ratio per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import approx_kl, clipped_surrogate, log_ratio
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "gspo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GSPO:
    """Clipped surrogate of the sequence ratio, in its token form, per token, [B, L].

        d_i    = mean over the row's loss tokens of l - l_old
        s_t    = exp(clip(sg(d_i) + l_t - sg(l_t), -c, c)),  c = log_ratio_clamp
        loss_t = -min( s_t A_t, clip(s_t, 1 - clip_low, 1 + clip_high) A_t )

    s_t has the value s_i = exp(d_i), and its gradient reaches every token. The ratio is the
    length-normalised mean, not the product over the sequence. Where A is constant on a row, the result
    equals that of one loss per row under every aggregation; where A varies, each token keeps its own.
    Masked positions get 0. LUSPO is this loss with clips of 0.2 and `sequence_sum`.
    Metrics: clip_fraction (the clipped branch is strictly smaller), approx_kl = exp(d_i) - 1 - d_i.

    Source: GSPO 2507.18071, with its token variant.
    """

    clip_low: Annotated[float, Range("(0, 1)")] = 3e-4
    """Distance of the lower bound of the sequence ratio from 1."""
    clip_high: Annotated[float, Range("(0, inf)")] = 4e-4
    """Distance of the upper bound of the sequence ratio from 1."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = 10.0
    """Bound of the mean log-ratio before exp, nats; rows beyond it get no gradient."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob = where0(mask, policy.logprob)
        mean = sequence_mean(log_ratio(logprob, batch["old_logprob"], mask), mask).detach()
        # Added in this order, l - sg(l) is exactly 0 and the value keeps the precision of the mean.
        clamped = (mean + (logprob - logprob.detach())).clamp(-self.log_ratio_clamp, self.log_ratio_clamp)
        surrogate, clipped = clipped_surrogate(
            clamped.exp(), where0(mask, batch["advantage"]), self.clip_low, self.clip_high
        )
        metrics = {"clip_fraction": clipped.float(), "approx_kl": where0(mask, approx_kl(clamped))}
        return TokenLoss(-surrogate, metrics)
