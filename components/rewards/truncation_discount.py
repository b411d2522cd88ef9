"""Truncation discount: scales down the reward of responses that hit the length limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from titanrl.protocols import FinishReason
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["TruncationDiscount"]


@register("reward", "truncation_discount")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationDiscount:
    """``(coefficient - 1) r`` on responses that hit the length limit, else 0.

    r is the reward named `reward`, which must come first. Added with the same weight, it leaves truncated
    responses coefficient times that reward. Aborted responses are left alone. A negative reward shrinks too:
    where wrong responses score below 0, use `unfinished`.

    Source: ProRL v2.
    """

    reward: str
    """Label of the [[reward]] that is discounted."""
    coefficient: Annotated[float, Range("[0, 1]")] = 0.0
    """Share of the reward that a truncated response keeps."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return (("rewards", self.reward), "finish_reason")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        is_truncated = batch["finish_reason"] == FinishReason.LENGTH
        return torch.where(is_truncated, (self.coefficient - 1) * batch["rewards", self.reward], 0.0)
