"""GRPO: the score relative to the mean of its group, in units of a standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import row_score, to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "grpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """Group-relative advantage, the same on every loss token of a row, [N, L]; 0 where masked.

        A_i = (s_i - b_i) / (sd + eps)

    b_i is the mean of the group or of its other rows. sd is the standard deviation over the group, over all
    scored rows of the batch, or over the other rows of the group; `std = "none"` does not divide (Dr.
    GRPO). A group consists of the rows with the same group_id, in any number and order. Equal scores in the
    group, a group of one and an unscored row (NaN) give exactly 0, in float32 too. With leave-one-out,
    there is no division where all other scores are equal. A fully masked row still counts in its group.

    Source: GRPO 2402.03300 section 4.1; Dr. GRPO 2503.20783. Elsewhere: eps 1e-4 (TRL), 1e-5 (AReaL), 1e-9
    (OpenRLHF); population standard deviation (torchtitan); leave-one-out mean and standard deviation
    (NeMo-RL).
    """

    std: Literal["group", "batch", "leave_one_out", "none"] = "group"
    """Rows over which the standard deviation is taken; none: no division."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """Mean of the group, or of the other rows of the group."""
    unbiased: bool = True
    """Divide variances by n - 1 instead of n."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """Added to the standard deviation, outside its root."""
    source: Literal["reward", "token_reward"] = "reward"
    """Score of a row: its reward, or the sum of its token rewards, which includes the KL penalty in the
    reward."""

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.std == "batch" else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(row_score(batch, self.source), batch["group_id"])
        baseline = groups.mean() if self.baseline == "mean" else groups.mean_of_others()
        advantage = groups.score - baseline
        if self.std == "group":
            advantage = advantage / (groups.std(self.unbiased) + self.eps)
        elif self.std == "batch":
            batch_scores = GroupScores.of(row_score(batch, self.source), torch.zeros_like(batch["group_id"]))
            advantage = advantage / (batch_scores.std(self.unbiased) + self.eps)
        elif self.std == "leave_one_out":
            others = groups.std_of_others(self.unbiased)
            advantage = advantage / torch.where(others == 0, 1.0, others + self.eps)
        return Advantages(to_tokens(torch.where(groups.comparable, advantage, 0.0), batch["loss_mask"]))
