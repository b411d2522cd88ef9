"""Mean over all loss tokens of the optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from titanrl.ops.masked import where0
from titanrl.registry import register


@register("aggregation", "token_mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMean:
    """Weight ``1 / M`` on each loss token, [N, L] float32; 0 where masked.

    M is the number of loss tokens of the optimizer step. The weights sum to 1; without a loss token all are
    0.

    Source: DAPO 2503.14476 section 3.3. Elsewhere: dapo, bnpo, token-mean.
    """

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        return where0(loss_mask, 1 / loss_mask.sum().clamp_min(1).float())
