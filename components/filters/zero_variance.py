"""DAPO's dynamic sampling: groups whose answers are all worth the same teach nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrl.errors import check_range
from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import reward_key
from titanrl.registry import register

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict


@register("filter", "zero_variance")
@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Returns [N] bool, true on every scored row of a group iff ``max - min > min_spread``.

    A group of one goes. A row without a score (NaN) is dropped and not counted.

    Source: DAPO 2503.14476 section 3.2.
    """

    key: str = "reward"
    """The summed reward, or the label of one reward: filter on the raw verdict, not on a shaped sum."""
    min_spread: float = 0.0
    """Spread that is still too little, in units of the reward, >= 0."""

    def __post_init__(self) -> None:
        check_range(self, "min_spread", "[0, inf)")

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        groups = GroupScores.of(batch[reward_key(self.key)], batch["group_id"])
        return groups.comparable & (groups.high - groups.low > self.min_spread)
