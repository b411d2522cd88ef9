"""Penalty for truncated and aborted responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.protocols import FinishReason
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Unfinished"]


@register("reward", "unfinished")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Penalty for a response that was truncated at the length limit or aborted; 0 for a finished one."""

    penalty: Annotated[float, Range("(-inf, 0]")] = -1.0
    """Reward of a truncated or aborted response."""
    in_keys: ClassVar[tuple[str, ...]] = ("finish_reason",)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        penalty: torch.Tensor = (batch["finish_reason"] != FinishReason.STOP).float() * self.penalty
        return penalty
