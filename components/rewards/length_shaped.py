"""Length shaping: a penalty on length that grows with the group's success rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from titanrl.ops.groups import GroupScores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LengthShaped"]


@register("reward", "length_shaped")
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthShaped:
    """Penalty on the lengths of a response relative to the longest of its group, times the mean reward.

        -mean_g(r) (output_weight T_i / max_g T + input_weight I_i / max_g I + turn_weight U_i / max_g U)

    r is the reward named `reward`; T is the number of loss tokens, I input_length (tokens of the row that
    were not generated) and U num_turns. Maxima are at least 1. All statistics are over the scored rows of
    the group; an unscored row gets 0. A group without success pays nothing. Add the reward with weight 1 to
    the named one, which must come first, and use the advantage grpo with std = "none".

    Source: prime-rl, with the weights 0.25, 0.1 and 0.1.
    """

    reward: str
    """Label of the [[reward]] whose group mean scales the penalty."""
    output_weight: Annotated[float, Range("[0, inf)")] = 0.25
    """Weight of the generated tokens."""
    input_weight: Annotated[float, Range("[0, inf)")] = 0.0
    """Weight of the other tokens of the row."""
    turn_weight: Annotated[float, Range("[0, inf)")] = 0.0
    """Weight of the number of turns."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        optional = {"input_length": self.input_weight, "num_turns": self.turn_weight}
        return (("rewards", self.reward), "group_id", *(key for key, weight in optional.items() if weight))

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32, <= 0 for rewards that are not negative."""
        score, group_id = batch["rewards", self.reward], batch["group_id"]
        groups = GroupScores.of(score, group_id)
        total = self.output_weight * _relative(batch["loss_mask"].sum(-1), groups, group_id)
        if self.input_weight:
            total = total + self.input_weight * _relative(batch["input_length"], groups, group_id)
        if self.turn_weight:
            total = total + self.turn_weight * _relative(batch["num_turns"], groups, group_id)
        return torch.where(groups.scored, -groups.mean() * total, 0.0).float()


def _relative(length: torch.Tensor, groups: GroupScores, group_id: torch.Tensor) -> torch.Tensor:
    """Returns [n] float64 ``length`` divided by the largest length among the scored rows of the group."""
    longest = GroupScores.of(torch.where(groups.scored, length.double(), torch.nan), group_id).high
    return length.double() / longest.clamp_min(1)
