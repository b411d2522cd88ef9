"""Every trainable token weighs one over the live sequences times a constant length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "constant_length")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantLength:
    """Returns ``1 / (B length)`` on each trainable token, [N, L] float32; 0 where masked.

    B counts the live rows of the optimizer step: a fully masked one does not count. The weights sum to
    M / (B length), M the number of trainable tokens; without a live row all are 0.

    Source: Dr. GRPO 2503.20783. Elsewhere: dr_grpo, seq-mean-token-sum-norm.
    """

    length: int
    """The constant, tokens, >= 1: the response limit, never the padded width."""
    sums_to: ClassVar[str] = "M / (B length)"
    """What the weights add up to, where it is not 1: M trainable tokens, B live rows."""

    def __post_init__(self) -> None:
        check_range(self, "length", "[1, inf)")

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        num_live = loss_mask.any(-1).sum()
        return where0(loss_mask, 1 / (num_live.clamp_min(1) * self.length).float())
