"""Soft overlong punishment: a penalty that grows over the last tokens before the length limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Overlong"]


@register("reward", "overlong")
@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """Soft overlong punishment: falls from 0 to -factor over the last tokens before the length limit.

        reward = -factor clip((T_i - (max_length - buffer)) / buffer, 0, 1),  T_i = number of loss tokens

    Source: soft overlong punishment, DAPO, arXiv 2503.14476 eq. 13. Deviation: `factor`, and the penalty
    stays at -factor beyond max_length.
    """

    max_length: Annotated[int, Range("[1, inf)")]
    """Response limit, tokens."""
    buffer: Annotated[int, Range("[1, max_length]")]
    """Number of tokens before the limit over which the penalty grows, <= max_length."""
    factor: Annotated[float, Range("[0, inf)")] = 1.0
    """Largest penalty."""
    in_keys: ClassVar[tuple[str, ...]] = ()

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [-factor, 0]."""
        length = batch["loss_mask"].sum(1).float()
        excess: torch.Tensor = (length - (self.max_length - self.buffer)) / self.buffer
        return -self.factor * excess.clamp(0, 1)
