"""Sum over all loss tokens of the optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.registry import register


@register("aggregation", "token_sum")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSum:
    """Weight ``1`` on each loss token, [N, L] float32; 0 where masked.

    The weights sum to M, the number of loss tokens of the optimizer step, so the update grows with the
    number of tokens.
    """

    sums_to: ClassVar[str] = "M"
    """Sum of the weights, with M loss tokens and B non-empty rows."""

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        return loss_mask.float()
