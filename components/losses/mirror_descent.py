"""Online mirror descent: policy gradient with a squared log-ratio regulariser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, log_ratio
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "mirror_descent")
@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDescent:
    """Policy gradient with a squared log-ratio penalty, [B, 1] for level "sequence", [B, L] for level
    "token".

        sequence: loss_i = -( a S - tau/2 D^2 ),  a = mean_i A,  S = sum_t m l,  D = sum_t m (l - l_old)
        token:    loss_t = -( A l - tau/2 (l - l_old)^2 )

    The sequence form has the paper's gradient, `A grad log pi(y) - tau/2 grad (log pi(y)/pi_old(y))^2`.
    The token form is also known as DRO. Masked positions and fully masked rows get 0. Use it with
    `grpo(std="none")` or `soft_baseline`.
    Metrics: approx_kl = exp(d) - 1 - d of the token log-ratio clamped to +-20.

    Source: Kimi k1.5 2501.12599.
    """

    tau: Annotated[float, Range("(0, inf)")] = 0.1
    """Strength of the regulariser."""
    level: Literal["sequence", "token"] = "sequence"
    """Square the log-ratio of the row or of each token."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob, advantage = where0(mask, policy.logprob), where0(mask, batch["advantage"])
        difference = log_ratio(logprob, batch["old_logprob"], mask)
        metrics = {"approx_kl": approx_kl(difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP))}
        if self.level == "sequence":
            advantage = sequence_mean(advantage, mask)
            logprob, difference = sequence_sum(logprob, mask), sequence_sum(difference, mask)
        return TokenLoss(self.tau / 2 * difference.square() - advantage * logprob, metrics)
