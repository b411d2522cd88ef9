"""Sum over the tokens of each sequence, then mean over sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "sequence_sum")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSum:
    """Weight ``1 / B`` on each loss token, [N, L] float32; 0 where masked.

    B is the number of non-empty rows of the optimizer step; fully masked rows do not count. The weights sum
    to M / B, M the number of loss tokens; without a loss token all are 0.

    Source: the policy gradient of a whole sequence, e.g. RLOO 2402.14740. Elsewhere: seq-mean-token-sum.
    """

    sums_to: ClassVar[str] = "M / B"
    """Sum of the weights, with M loss tokens and B non-empty rows."""

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        num_nonempty = loss_mask.any(-1).sum()
        return where0(loss_mask, 1 / num_nonempty.clamp_min(1).float())
