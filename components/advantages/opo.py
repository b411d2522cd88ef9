"""OPO: the reward minus the length-weighted mean of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "opo")
@dataclass(frozen=True, slots=True, kw_only=True)
class OPO:
    """Reward minus the variance-minimising baseline of the group, [N, L]; 0 where masked.

        A_i = r_i - sum_g T_j r_j / sum_g T_j,   T_j the loss tokens of row j

    A group without loss tokens, equal rewards in the group, a group of one and an unscored row (NaN) give
    exactly 0.

    Source: 2505.23585, which assumes squared gradient norms proportional to length. Intended for exactly
    on-policy training.
    """

    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = batch["loss_mask"]
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        length = mask.sum(-1).double()
        total = groups.sum(length)
        advantage = groups.score - groups.sum(length * groups.score) / total.clamp_min(1)
        return Advantages(to_tokens(torch.where(groups.comparable & (total > 0), advantage, 0.0), mask))
