"""Every trainable token weighs 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.registry import register


@register("aggregation", "token_sum")
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSum:
    """Returns ``1`` on each trainable token, [N, L] float32; 0 where masked.

    The weights sum to M, the number of trainable tokens of the optimizer step, so the size of a step grows
    with them.
    """

    sums_to: ClassVar[str] = "M"
    """What the weights add up to, where it is not 1: M trainable tokens, B live rows."""

    def __call__(self, loss_mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
        return loss_mask.float()
