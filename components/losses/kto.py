"""KTO: Kahneman-Tversky optimisation on single responses labelled good or bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import log_ratio
from titanrl.ops.sequence import sequence_sum
from titanrl.ops.sigmoid import sigmoid
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "kto")
@dataclass(frozen=True, slots=True, kw_only=True)
class KTO:
    """Prospect-theoretic loss of single responses with a good or bad label, per row, [B, 1].

        x = sum_t m (l - l_ref)
        reward > 0: desirable_weight   (1 - sig(beta (x - z)))
        else:       undesirable_weight (1 - sig(beta (z - x)))

    z is the batch key reference_point, the same number on every row, without gradient: max(0, the mean
    log-ratio of mismatched prompt-response pairs over the global batch), computed at stage `score`. The
    variant apo_zero uses z = 0 instead. A fully masked row and an unscored one (reward NaN) get 0.
    Metrics: reward = beta (x - z), [B, 1].

    Source: KTO 2402.01306; apo_zero, unpaired: 2408.06266.
    """

    beta: Annotated[float, Range("(0, inf)")] = 0.1
    """Scale of the log-ratio."""
    desirable_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Weight of rows with reward > 0."""
    undesirable_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Weight of rows with reward <= 0."""
    variant: Literal["kto", "apo_zero"] = "kto"
    """z is the batch's reference point (kto) or 0 (apo_zero)."""

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("ref_logprob", "reward", *(("reference_point",) if self.variant == "kto" else ()))

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, reward = batch["loss_mask"], batch["reward"][:, None]
        scored = mask.any(-1, keepdim=True) & ~reward.isnan()
        logit = sequence_sum(log_ratio(policy.logprob, batch["ref_logprob"], mask), mask)
        if self.variant == "kto":
            logit = logit - where0(scored, batch["reference_point"].detach()[:, None])
        logit = self.beta * logit
        # 1 - sig(h) is sig(-h).
        desirable = self.desirable_weight * sigmoid(-logit)
        undesirable = self.undesirable_weight * sigmoid(logit)
        loss = where0(scored, torch.where(reward > 0, desirable, undesirable))
        return TokenLoss(loss, {"reward": where0(scored, logit.detach())})
