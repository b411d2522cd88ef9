"""A penalty that grows over the last tokens before the length limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Overlong"]


@register("reward", "overlong")
@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """-factor * clip((T_i - (max_length - buffer)) / buffer, 0, 1), T_i = number of trainable tokens.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476 eq. 13. Deviation: `factor`, and the penalty
    stays at -factor beyond max_length.
    """

    max_length: int
    """Response limit, tokens, >= buffer."""
    buffer: int
    """Last tokens before the limit, over which the penalty grows, > 0."""
    factor: float = 1.0
    """Largest penalty, >= 0."""
    in_keys: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.max_length:
            raise ValueError(f"buffer must be in (0, max_length = {self.max_length}], got {self.buffer}.")
        if not 0 <= self.factor < math.inf:
            raise ValueError(f"factor must be in [0, inf), got {self.factor}.")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [-factor, 0]."""
        length = batch["loss_mask"].sum(1).float()
        over: torch.Tensor = (length - (self.max_length - self.buffer)) / self.buffer
        return -self.factor * over.clamp(0, 1)
