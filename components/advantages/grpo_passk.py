"""Pass@k GRPO: only the best response of a group gets an advantage, its lead over the second best."""

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


@register("advantage", "grpo_passk")
@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOPassK:
    """Lead of the group's best row over the second best on its loss tokens, 0 on all other rows, [N, L].

        A = (r_(1) - r_(2)) / (sd + eps),   sd unbiased over the group

    Two equally good best rows, a group of one and an unscored row (NaN) give 0. Masked positions get 0.

    Source: 2503.19595.
    """

    std: bool = True
    """Divide the lead by the group's standard deviation."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """Added to the standard deviation."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        best = groups.first_of(groups.score)
        others = torch.where(groups.scored & ~best, groups.score, torch.nan)
        rest = GroupScores.of(others, batch["group_id"])
        lead = groups.score - rest.high
        if self.std:
            lead = lead / (groups.std() + self.eps)
        return Advantages(to_tokens(torch.where(best & groups.comparable, lead, 0.0), batch["loss_mask"]))
