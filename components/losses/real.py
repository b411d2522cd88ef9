"""REAL: a classification loss that separates the right responses of a group from the wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.covariance import same_group
from titanrl.ops.masked import where0
from titanrl.ops.ratio import clamped_log_ratio
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "real")
@dataclass(frozen=True, slots=True, kw_only=True)
class REAL:
    """Rewards as labels: one classification loss per group, on each of its rows, [B, 1].

        loss = log(1 + sum over right rows of exp(-s)) + log(1 + sum over wrong rows of exp(s))
        s_i  = mean_i clip(l - l_old, -20, 20) / tau,   right: reward > threshold

    The sums run over the scored rows of the group with a loss token; each of these rows carries the loss. A
    group with right or wrong rows only, an unscored row (NaN) and an empty row get 0. With the aggregation
    sequence_mean and groups of equal size, the total is the mean over all groups. The advantage is not read.

    Source: REAL 2602.05630.
    """

    tau: Annotated[float, Range("(0, inf)")] = 0.5
    """Temperature of the scores."""
    threshold: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Reward above which a response is right."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "reward", "group_id")
    couples_group: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, reward = batch["loss_mask"], batch["reward"]
        member = mask.any(-1) & ~reward.isnan()
        score = sequence_mean(clamped_log_ratio(policy.logprob, batch["old_logprob"], mask), mask)[:, 0]
        score = score / self.tau
        peers = same_group(batch["group_id"]) & member[None, :] & member[:, None]
        right = peers & (reward > self.threshold)[None, :]
        wrong = peers & ~(reward > self.threshold)[None, :]
        loss = _log_one_plus_sum_exp(-score, right) + _log_one_plus_sum_exp(score, wrong)
        has_both = right.any(-1, keepdim=True) & wrong.any(-1, keepdim=True)
        return TokenLoss(where0(has_both, loss), {})


def _log_one_plus_sum_exp(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Returns [B, 1] ``log(1 + sum of exp(x))`` over the chosen entries [B, B] of ``x`` [B]."""
    terms = torch.where(chosen, x[None, :], -torch.inf)
    return torch.nn.functional.pad(terms, (1, 0)).logsumexp(-1, keepdim=True)
