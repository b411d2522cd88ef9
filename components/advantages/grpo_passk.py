"""Pass@k GRPO: only the best answer of a group is pushed, by how far it beats the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.errors import check_range
from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "grpo_passk")
@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOPassK:
    """Returns the lead of the best row of each group on its trainable tokens, 0 on all other rows, [N, L].

        A = (r_(1) - r_(2)) / (sd + eps),   sd unbiased over the group

    A tie at the top, a group of one, or an unscored row (NaN): 0. Masked places get 0.

    Source: 2503.19595.
    """

    std: bool = True
    """Whether the lead is divided by the group's deviation."""
    eps: float = 1e-6
    """Added to the deviation, >= 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __post_init__(self) -> None:
        check_range(self, "eps", "[0, inf)")

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        best = groups.first_of(groups.score)
        others = torch.where(groups.scored & ~best, groups.score, torch.nan)
        rest = GroupScores.of(others, batch["group_id"])
        lead = groups.score - rest.high
        if self.std:
            lead = lead / (groups.std() + self.eps)
        return Advantages(to_tokens(torch.where(best & groups.comparable, lead, 0.0), batch["loss_mask"]))
