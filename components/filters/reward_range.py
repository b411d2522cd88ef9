"""Online difficulty: groups that are neither hopeless nor solved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import reward_key
from titanrl.registry import register

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict


@register("filter", "reward_range")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRange:
    """Returns [N] bool, true on every scored row of a group iff ``low < mean < high``, both strict.

    As a curriculum, high = 0.9 drops what is solved. A row without a score (NaN) is dropped and not counted.

    Source: online difficulty filtering, 2504.03380.
    """

    key: str = "reward"
    """The summed reward, or the label of one reward: filter on the raw verdict, not on a shaped sum."""
    low: float = 0.0
    """Mean reward above which a group is kept, < high."""
    high: float = 1.0
    """Mean reward below which a group is kept."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}.")

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        groups = GroupScores.of(batch[reward_key(self.key)], batch["group_id"])
        mean = (
            groups.mean().float()
        )  # In float32, as rewards are: a mean of 0.9 is then not below a high of 0.9.
        return groups.scored & (mean > self.low) & (mean < self.high)
