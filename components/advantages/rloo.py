"""RLOO: the score minus the mean of the group's other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import row_score, to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "rloo")
@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    """Leave-one-out advantage, the same on every loss token of a row, [N, L]; 0 where masked.

        A_i = s_i - mean(s_j, j != i in the group)  =  G / (G - 1) (s_i - mean_g)

    Equal scores in the group, a group of one and an unscored row (NaN) give exactly 0.

    Source: 2402.14740.
    """

    source: Literal["reward", "token_reward"] = "reward"
    """Score of a row: its reward, or the sum of its token rewards, which includes the KL penalty in the
    reward."""
    scope: ClassVar[Literal["group", "batch"]] = "group"

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (self.source,)

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(row_score(batch, self.source), batch["group_id"])
        advantage = groups.score - groups.mean_of_others()
        return Advantages(to_tokens(torch.where(groups.comparable, advantage, 0.0), batch["loss_mask"]))
