"""Mean over the tokens of each sequence, then over sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "sequence_mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMean:
    """Weight ``1 / (B T_i)`` on the T_i loss tokens of row i, [N, L] float32; 0 where masked.

    B is the number of non-empty rows of the optimizer step; fully masked rows do not count. The weights sum
    to 1; without a loss token all are 0.

    Source: GRPO 2402.03300 eq. 3. Elsewhere: grpo, seq-mean-token-mean.
    """

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        tokens = loss_mask.sum(-1, keepdim=True)
        num_nonempty = (tokens > 0).sum()
        return where0(loss_mask, 1 / (num_nonempty * tokens).clamp_min(1).float())
