"""A penalty for answers that did not end by themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Unfinished"]


@register("reward", "unfinished")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """penalty if finish_reason is not 0 (stop), that is at the length limit or after an abort; else 0."""

    penalty: float = -1.0
    """Value of an unfinished answer, <= 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("finish_reason",)

    def __post_init__(self) -> None:
        if not -math.inf < self.penalty <= 0:
            raise ValueError(f"penalty must be in (-inf, 0], got {self.penalty}.")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        penalty: torch.Tensor = (batch["finish_reason"] != 0).float() * self.penalty
        return penalty
