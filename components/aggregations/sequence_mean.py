"""Every live sequence weighs the same, and all together 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "sequence_mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMean:
    """Returns ``1 / (B T_i)`` on the T_i trainable tokens of row i, [N, L] float32; 0 where masked.

    B counts the live rows of the optimizer step: a fully masked one does not count. The weights sum to 1;
    without a live row all are 0.

    Source: GRPO 2402.03300 eq. 3. Elsewhere: grpo, seq-mean-token-mean.
    """

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        tokens = loss_mask.sum(-1, keepdim=True)
        num_live = (tokens > 0).sum()
        return where0(loss_mask, 1 / (num_live * tokens).clamp_min(1).float())
