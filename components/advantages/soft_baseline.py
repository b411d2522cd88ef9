"""Soft baseline (A*-PO, Kimi): the reward minus the soft maximum of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "soft_baseline")
@dataclass(frozen=True, slots=True, kw_only=True)
class SoftBaseline:
    """Reward minus the soft maximum of the group's rewards, [N, L]; 0 where masked.

        A_i = r_i - tau log mean_g exp(r / tau)

    It is computed by log-sum-exp, so no tau overflows. tau -> inf gives the group's mean, tau -> 0 its
    maximum. Equal rewards in the group, a group of one and an unscored row (NaN) give exactly 0.

    Source: A*-PO 2505.20686; Kimi k1.5 2501.12599.
    """

    tau: Annotated[float, Range("(0, inf)")] = 1.0
    """Temperature, in units of the reward."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        below_best = torch.where(groups.scored, groups.score - groups.high, 0.0) / self.tau
        # expm1 and log1p keep all digits of a large tau, where each exponential is near 1.
        mean = groups.sum(torch.expm1(below_best)) / groups.count.clamp_min(1)
        advantage = groups.score - (groups.high + self.tau * torch.log1p(mean))
        return Advantages(to_tokens(torch.where(groups.comparable, advantage, 0.0), batch["loss_mask"]))
