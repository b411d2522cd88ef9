"""Reward range: keeps groups of intermediate difficulty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import reward_key
from titanrl.registry import Range, register

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict


@register("filter", "reward_range")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRange:
    """Filter that keeps groups whose mean reward is between two bounds, ``low < mean < high``, [N] bool.

    Both bounds are exclusive. As a curriculum, high = 0.9 drops solved prompts. An unscored row (NaN) is
    dropped and does not count.

    Source: online difficulty filtering, 2504.03380.
    """

    key: str = "reward"
    """"reward" for the summed reward, or the label of one reward; prefer an unshaped reward to a shaped
    sum."""
    low: Annotated[float, Range("[-inf, inf]")] = 0.0
    """Lower bound of a group's mean reward, exclusive; must be < high."""
    high: Annotated[float, Range("[-inf, inf]")] = 1.0
    """Upper bound of a group's mean reward, exclusive."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}.")

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        groups = GroupScores.of(batch[reward_key(self.key)], batch["group_id"])
        # In float32, the dtype of rewards: a mean of 0.9 is then not below a high of 0.9.
        mean = groups.mean().float()
        return groups.scored & (mean > self.low) & (mean < self.high)
