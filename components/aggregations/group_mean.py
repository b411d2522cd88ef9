"""Mean over the tokens of each group, then over groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from titanrl.ops.groups import group_index, segment_sum
from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "group_mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMean:
    """Weight ``1 / (P M_g)`` on the M_g loss tokens of group g, [N, L] float32; 0 where masked.

    P is the number of groups with a loss token. The weights sum to 1; without a loss token all are 0.

    Source: ScaleRL 2510.13786. Elsewhere: prompt_mean.
    """

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        index, num = group_index(group_id)
        tokens = segment_sum(loss_mask.sum(-1), index, num)
        num_nonempty = (tokens > 0).sum()
        weight = 1 / (num_nonempty * tokens).clamp_min(1).float()
        return where0(loss_mask, weight[index].unsqueeze(-1))
