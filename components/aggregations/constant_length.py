"""Sum over tokens divided by the number of sequences and a constant length (Dr. GRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.registry import Range, register


@register("aggregation", "constant_length")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantLength:
    """Weight ``1 / (B length)`` on each loss token, [N, L] float32; 0 where masked.

    B is the number of non-empty rows of the optimizer step; fully masked rows do not count. The weights sum
    to M / (B length), M the number of loss tokens. Without a loss token all weights are 0.

    Source: Dr. GRPO 2503.20783. Elsewhere: dr_grpo, seq-mean-token-sum-norm.
    """

    length: Annotated[int, Range("[1, inf)")]
    """Constant length, tokens: the response limit, not the padded width."""
    sums_to: ClassVar[str] = "M / (B length)"
    """Sum of the weights, with M loss tokens and B non-empty rows."""

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        num_nonempty = loss_mask.any(-1).sum()
        return where0(loss_mask, 1 / (num_nonempty.clamp_min(1) * self.length).float())
