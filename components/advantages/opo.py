"""OPO: the reward against the length-weighted mean of its group."""

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
    """Returns rewards against the variance-minimising baseline, on every trainable token, [N, L].

        A_i = r_i - sum_g T_j r_j / sum_g T_j,   T_j the trainable tokens of row j

    No trainable token in the group, equal rewards, a group of one, or an unscored row (NaN): exactly 0.
    Masked places get 0.

    Source: 2505.23585: gradient norms are taken as proportional to length. Meant for exactly
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
