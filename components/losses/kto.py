"""Kahneman-Tversky optimisation: single rows that are good or bad, no pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from titanrl.errors import check_range
from titanrl.ops.masked import where0
from titanrl.ops.ratio import log_ratio
from titanrl.ops.sequence import sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "kto")
@dataclass(frozen=True, slots=True, kw_only=True)
class KTO:
    """Returns the prospect-theoretic loss of each row, [B, 1]; rows need no partner.

        x = sum_t m (l - l_ref)
        reward > 0: desirable_weight   (1 - sig(beta (x - z)))
        else:       undesirable_weight (1 - sig(beta (z - x)))

    z = reference_point, the same number on every row, without gradient: max(0, mean over the global batch of
    the log-ratio of mismatched prompt-answer pairs), written at stage `score`. Variant apo_zero: z = 0, not
    read. A fully masked row, and an unscored one (reward NaN), get 0. Metrics: reward = beta (x - z), [B,
    1].

    Source: KTO 2402.01306; apo_zero, unpaired: 2408.06266.
    """

    beta: float = 0.1
    """Scale of the log-ratio, > 0."""
    desirable_weight: float = 1.0
    """Weight of rows with reward > 0, >= 0."""
    undesirable_weight: float = 1.0
    """Weight of the other rows, >= 0."""
    variant: Literal["kto", "apo_zero"] = "kto"
    """Whether z is the batch's reference point or 0."""

    def __post_init__(self) -> None:
        check_range(self, "beta", "(0, inf)")
        check_range(self, "desirable_weight", "[0, inf)")
        check_range(self, "undesirable_weight", "[0, inf)")

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("ref_logprob", "reward", *(("reference_point",) if self.variant == "kto" else ()))

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, reward = batch["loss_mask"], batch["reward"][:, None]
        live = mask.any(-1, keepdim=True) & ~reward.isnan()
        logit = sequence_sum(log_ratio(policy.logprob, batch["ref_logprob"], mask), mask)
        if self.variant == "kto":
            logit = logit - where0(live, batch["reference_point"].detach()[:, None])
        logit = self.beta * logit
        # 1 - sig(h) is sig(-h).
        desirable = self.desirable_weight * torch.sigmoid(-logit)
        undesirable = self.undesirable_weight * torch.sigmoid(logit)
        loss = where0(live, torch.where(reward > 0, desirable, undesirable))
        return TokenLoss(loss, {"reward": where0(live, logit.detach())})
