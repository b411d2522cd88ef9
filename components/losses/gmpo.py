"""GMPO: geometric-mean policy optimisation, PPO's clip on the mean log-ratio of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "gmpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GMPO:
    """Surrogate with the geometric mean of the clipped token ratios, per row, [B, 1].

        a = mean_i A,  z = sign(a),  d = clip(l - l_old, -c, c),  c = log_ratio_clamp
        x_t    = z min( z d_t, z clip(d_t, -clip_low, clip_high) )
        loss_i = -a exp(mean_i x)

    The clip acts per token, in log space. Means run over the row's loss tokens; a fully masked row gets
    0.
    Metrics: clip_fraction (the clipped branch is strictly smaller), approx_kl.

    Source: GMPO 2507.20673.
    """

    clip_low: Annotated[float, Range("(0, inf)")] = 0.4
    """Distance of the lower bound of the log-ratio from 0, nats."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.4
    """Distance of the upper bound of the log-ratio from 0, nats."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before the clip, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = sequence_mean(where0(mask, batch["advantage"]), mask)
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        bounded = clamped.clamp(-self.clip_low, self.clip_high)
        clipped = advantage.sign() * bounded < advantage.sign() * clamped
        mean = sequence_mean(torch.where(clipped, bounded, clamped), mask)
        metrics = {"clip_fraction": clipped.float(), "approx_kl": approx_kl(clamped)}
        return TokenLoss(-advantage * mean.exp(), metrics)
