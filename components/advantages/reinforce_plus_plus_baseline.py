"""REINFORCE++-baseline: the score minus its group's mean, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import whiten
from titanrl.ops.scores import row_score, to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "reinforce_plus_plus_baseline")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusBaseline:
    """Group-centred score, whitened over the batch, [N, L]; 0 where masked.

        A = W(s_i - mean_g),   W(x) = (x - mean) / sqrt(var + 1e-8)

    W is taken over all loss tokens of the batch, so long rows have more weight in its mean. Rows without a
    comparison (equal scores, a group of one) enter W as 0 and become -mean / standard deviation. With fewer
    than two loss tokens, or if all are equal, the result is 0. An unscored row (NaN) enters no statistic
    and gets 0.

    Source: 2501.03262. Elsewhere: population variance clamped at 1e-8 (OpenRLHF, NeMo-RL), which makes
    every value larger by the factor sqrt(n / (n - 1)).
    """

    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the batch."""
    source: Literal["reward", "token_reward"] = "reward"
    """Score of a row: its reward, or the sum of its token rewards, which includes the KL penalty in the
    reward."""

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.whiten else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(row_score(batch, self.source), batch["group_id"])
        centred = torch.where(groups.comparable, groups.score - groups.mean(), 0.0)
        scored = batch["loss_mask"] & groups.scored.unsqueeze(-1)
        advantage = to_tokens(centred, scored)
        return Advantages(whiten(advantage, scored) if self.whiten else advantage)
