"""Zero variance: drops groups whose responses all have the same reward (DAPO's dynamic sampling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import reward_key
from titanrl.registry import Range, register

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict


@register("filter", "zero_variance")
@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Filter that keeps groups whose rewards differ, ``max - min > min_spread``, [N] bool.

    A group of one is dropped. An unscored row (NaN) is dropped and does not count.

    Source: DAPO 2503.14476 section 3.2.
    """

    key: str = "reward"
    """"reward" for the summed reward, or the label of one reward; prefer an unshaped reward to a shaped
    sum."""
    min_spread: Annotated[float, Range("[0, inf)")] = 0.0
    """Difference between a group's largest and smallest reward that must be exceeded, in units of the
    reward."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        groups = GroupScores.of(batch[reward_key(self.key)], batch["group_id"])
        return groups.comparable & (groups.high - groups.low > self.min_spread)
