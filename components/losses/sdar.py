"""SDAR: PPO's clipped surrogate plus a gated pull towards a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, clipped_surrogate
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "sdar")
@dataclass(frozen=True, slots=True, kw_only=True)
class SDAR:
    """Clipped surrogate plus distillation where the teacher is more certain, per token, [B, L].

        loss = ppo_clip + coefficient sg(sig(gate (l_tea - l))) (l_tea - l)

    The gate opens on tokens that the teacher finds more likely than the policy. Masked positions get 0.
    Metrics: clip_fraction, approx_kl, gate (its value).

    Source: SDAR 2605.15155.
    """

    coefficient: Annotated[float, Range("[0, inf)")] = 0.1
    """Coefficient of the distillation term."""
    gate: Annotated[float, Range("(0, inf)")] = 5.0
    """Steepness of the gate, 1 / nats."""
    clip_low: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the lower bound of the ratio from 1."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.2
    """Distance of the upper bound of the ratio from 1."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage", "teacher_logprob")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        surrogate, clipped = clipped_surrogate(clamped.exp(), advantage, self.clip_low, self.clip_high)
        gap = where0(mask, batch["teacher_logprob"]) - where0(mask, policy.logprob)
        gate = (self.gate * gap.detach()).sigmoid()
        loss = -surrogate + self.coefficient * gate * gap
        metrics = {
            "clip_fraction": clipped.float(),
            "approx_kl": approx_kl(clamped),
            "gate": where0(mask, gate),
        }
        return TokenLoss(where0(mask, loss), metrics)
