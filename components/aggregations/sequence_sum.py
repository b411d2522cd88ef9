"""Every trainable token weighs one over the number of live sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "sequence_sum")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSum:
    """Returns ``1 / B`` on each trainable token, [N, L] float32; 0 where masked.

    B counts the live rows of the optimizer step: a fully masked one does not count. The weights sum to M / B,
    M the number of trainable tokens; without a live row all are 0.

    Source: the policy gradient of a whole sequence, e.g. RLOO 2402.14740. Elsewhere: seq-mean-token-sum.
    """

    sums_to: ClassVar[str] = "M / B"
    """What the weights add up to, where it is not 1: M trainable tokens, B live rows."""

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        num_live = loss_mask.any(-1).sum()
        return where0(loss_mask, 1 / num_live.clamp_min(1).float())
