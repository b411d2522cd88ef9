"""MaxRL: group-centred rewards in units of the group's mean."""

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


@register("advantage", "max_rl")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRL:
    """Reward minus the group mean, divided by the group mean, [N, L]; 0 where masked.

        A_i = (r_i - mean_g) / (mean_g + eps)

    A mean <= 0, equal rewards in the group, a group of one and an unscored row (NaN) give exactly 0.

    Source: 2602.02710. Intended for rewards >= 0; with 0/1 rewards it maximises the logarithm of the pass
    rate.
    """

    eps: Annotated[float, Range("[0, inf)")] = 0.0
    """Added to the mean."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        mean = groups.mean()
        valid = groups.comparable & (mean > 0)
        advantage = (groups.score - mean) / torch.where(valid, mean + self.eps, 1.0)
        return Advantages(to_tokens(torch.where(valid, advantage, 0.0), batch["loss_mask"]))
