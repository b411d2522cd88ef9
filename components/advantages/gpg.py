"""GPG: group-centred rewards, scaled by the inverse fraction of rewarded rows."""

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


@register("advantage", "gpg")
@dataclass(frozen=True, slots=True, kw_only=True)
class GPG:
    """Group-centred reward, scaled by the inverse fraction of rows with a non-zero reward, [N, L]; 0 where
    masked.

        A_i = alpha (r_i - mean_g) / f_norm,   alpha = N / max(#{r != 0}, 1)

    N is the number of scored rows in the batch. Equal rewards in the group, a group of one and an unscored
    row (NaN) give exactly 0.

    Source: 2504.02546.
    """

    f_norm: Annotated[float, Range("(0, inf)")] = 1.0
    """Divisor of every advantage."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "batch"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        rewarded = (groups.scored & (groups.score != 0)).sum().clamp_min(1)
        alpha = groups.scored.sum().double() / rewarded
        advantage = alpha * (groups.score - groups.mean()) / self.f_norm
        return Advantages(to_tokens(torch.where(groups.comparable, advantage, 0.0), batch["loss_mask"]))
