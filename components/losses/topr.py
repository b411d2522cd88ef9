"""TOPR: plain policy gradient on good responses, a truncated importance ratio on bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, log_ratio
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "topr")
@dataclass(frozen=True, slots=True, kw_only=True)
class TOPR:
    """Tapered off-policy REINFORCE, per token, [B, L].

        good token:  loss = -positive_weight A l
        other:       loss = -negative_weight sg(min(u, 1)) A l
        u = exp(clip(x, -20, 20)),  x of level:  sequence  sum over the row of l - l_old
                                                 token     the token's l - l_old
                                                 mean      mean over the row

    A token is good if A > 0, or with sign = "reward" if the row's reward is > 0. Good responses keep their
    gradient however unlikely they have become; the push away from bad ones ends where the policy has left
    them. Masked positions get 0. Metrics: clip_fraction (not good and u > 1), approx_kl.

    Source: TOPR 2503.14286. On long rows the token ratio that other frameworks use is not the paper's ratio.
    """

    positive_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Factor of the loss of good tokens."""
    negative_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Factor of the loss of the other tokens."""
    level: Literal["sequence", "token", "mean"] = "sequence"
    """Log-ratio that is truncated: the row's sum, the token's, or the row's mean."""
    sign: Literal["advantage", "reward"] = "advantage"
    """Quantity whose sign says whether a token is good."""
    is_zero_without_advantage: ClassVar[bool] = True

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("old_logprob", "advantage", *(("reward",) if self.sign == "reward" else ()))

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, logprob = batch["loss_mask"], where0(batch["loss_mask"], policy.logprob)
        advantage = where0(mask, batch["advantage"])
        difference = log_ratio(logprob.detach(), batch["old_logprob"], mask)
        exponent = difference
        if self.level == "sequence":
            exponent = sequence_sum(difference, mask).expand_as(difference)
        elif self.level == "mean":
            exponent = sequence_mean(difference, mask).expand_as(difference)
        ratio = exponent.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()
        good = advantage > 0 if self.sign == "advantage" else (batch["reward"] > 0)[:, None].expand_as(mask)
        weight = torch.where(good, self.positive_weight, self.negative_weight * ratio.clamp(max=1.0))
        clamped = clamped_log_ratio(logprob.detach(), batch["old_logprob"], mask)
        metrics = {
            "clip_fraction": where0(mask, (~good & (ratio > 1)).float()),
            "approx_kl": approx_kl(clamped),
        }
        return TokenLoss(-weight * advantage * logprob, metrics)
