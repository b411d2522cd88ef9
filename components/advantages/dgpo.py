"""DGPO: group-relative advantage by mean absolute deviation, with more weight on hard questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import reward_key, to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "dgpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class DGPO:
    """Deviation from the group's mean in units of its mean absolute deviation, by difficulty, [N, L].

        A_i = n (r_i - mean_g) / (sum_g |r - mean_g| + eps) * (M / M_live) * w_g
        w_g = P_live softmax over live groups of (-acc_g / temperature)

    A live group has unequal rewards; P_live is their number, M_live the number of loss tokens of their
    scored rows and M that of all scored rows, so that equal groups do not dilute a token mean. acc_g is the
    group's mean accuracy reward, where 0 counts as 1: a live group without a right response differs in
    format only. Groups that are not live and unscored rows (NaN) get 0. Masked positions get 0.

    Source: MathForge 2601.20614.
    """

    temperature: Annotated[float, Range("(0, inf]")] = 2.0
    """Temperature of the weights over questions; inf: equal weights."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-4
    """Added to the sum of absolute deviations."""
    question_weight: bool = True
    """Whether w_g is applied; else 1."""
    token_scale: bool = True
    """Whether M / M_live is applied; else 1. Use false with the filter zero_variance, which has removed the
    other groups."""
    accuracy: str = "reward"
    """Reward that measures accuracy: the sum, or the label of a [[reward]]."""
    scope: ClassVar[Literal["group", "batch"]] = "batch"

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return ("reward", *(() if self.accuracy == "reward" else (("rewards", self.accuracy),)))

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = batch["loss_mask"]
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        live = groups.comparable
        deviation = groups.score - groups.mean()
        advantage = groups.count * deviation / (groups.sum(deviation.abs()) + self.eps)
        if self.token_scale:
            tokens = mask.sum(-1)
            advantage = advantage * tokens[groups.scored].sum() / tokens[live].sum().clamp_min(1)
        if self.question_weight:
            accuracy = torch.where(groups.scored, batch[reward_key(self.accuracy)].double(), torch.nan)
            advantage = advantage * self._weight(groups, GroupScores.of(accuracy, batch["group_id"]).mean())
        return Advantages(to_tokens(torch.where(live, advantage, 0.0), mask))

    def _weight(self, groups: GroupScores, accuracy: torch.Tensor) -> torch.Tensor:
        """Returns [N] w of each row's group; undefined where the group is not live."""
        logit = -torch.where(accuracy == 0, 1.0, accuracy) / self.temperature
        per_group = logit.new_full((groups.num,), -torch.inf)
        per_group[groups.index[groups.comparable]] = logit[groups.comparable]
        num_live = per_group.isfinite().sum()
        return (num_live * per_group.softmax(0))[groups.index]
