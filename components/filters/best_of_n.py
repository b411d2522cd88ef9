"""Rejection-sampling fine-tuning: the best answers of each group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.groups import group_index, segment_sum
from titanrl.ops.scores import reward_key
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("filter", "best_of_n")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """Returns [N] bool, true on the ``keep`` best rows of each group that have reward >= min_reward.

    Ties: the lower row index. It keeps rows, not whole groups, so use it with losses that aren't relative to
    the group (sft). A row without a score (NaN) is dropped.

    Source: RFT 2308.01825; RAFT 2304.06767.
    """

    keep: int = 2
    """Rows kept of each group, >= 1."""
    key: str = "reward"
    """The summed reward, or the label of one reward: filter on the raw verdict, not on a shaped sum."""
    min_reward: float = -math.inf
    """Least reward of a row that is kept."""
    keeps_groups: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_range(self, "keep", "[1, inf)")
        check_range(self, "min_reward", "[-inf, inf]")

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        reward = batch[reward_key(self.key)]
        index, num = group_index(batch["group_id"])
        candidate = reward >= self.min_reward
        # Groups together, the best first, the lower row first among equals; then the place in the group.
        order = torch.where(candidate, -reward, torch.inf).argsort(stable=True)
        order = order[index[order].argsort(stable=True)]
        size = segment_sum(torch.ones_like(index), index, num)
        begin = size.cumsum(0) - size
        place = torch.empty_like(index)
        place[order] = torch.arange(len(index), device=index.device) - begin[index[order]]
        keep: torch.Tensor = candidate & (place < self.keep)
        return keep
