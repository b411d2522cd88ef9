"""Best of n: keeps the best responses of each group (rejection-sampling fine-tuning)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.groups import group_index, segment_sum
from titanrl.ops.scores import reward_key
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("filter", "best_of_n")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """Filter that keeps the ``keep`` best rows of each group with reward >= min_reward, [N] bool.

    Ties are broken by row index. The filter keeps rows, not whole groups, so use it with losses that are
    not relative to the group (sft). An unscored row (NaN) is dropped.

    Source: RFT 2308.01825; RAFT 2304.06767.
    """

    keep: Annotated[int, Range("[1, inf)")] = 2
    """Rows to keep per group."""
    key: str = "reward"
    """"reward" for the summed reward, or the label of one reward; prefer an unshaped reward to a shaped
    sum."""
    min_reward: Annotated[float, Range("[-inf, inf]")] = -math.inf
    """Smallest reward of a row to keep."""
    keeps_groups: ClassVar[bool] = False

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (reward_key(self.key),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        reward = batch[reward_key(self.key)]
        index, num = group_index(batch["group_id"])
        candidate = reward >= self.min_reward
        # Sort by group, then best reward first, then row; rank is the position within the group.
        order = torch.where(candidate, -reward, torch.inf).argsort(stable=True)
        order = order[index[order].argsort(stable=True)]
        size = segment_sum(torch.ones_like(index), index, num)
        first = size.cumsum(0) - size
        rank = torch.empty_like(index)
        rank[order] = torch.arange(len(index), device=index.device) - first[index[order]]
        keep: torch.Tensor = candidate & (rank < self.keep)
        return keep
