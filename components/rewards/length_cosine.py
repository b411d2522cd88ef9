"""Cosine length reward: favours short correct responses and long incorrect ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LengthCosine"]


@register("reward", "length_cosine")
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCosine:
    """Cosine length reward: short correct responses score higher, short incorrect ones lower.

        f      = (1 + cos(pi min(T / max_length, 1))) / 2,  T = number of loss tokens
        reward = min_correct + (max_correct - min_correct) f   where the named reward is > 0.5
                 max_wrong + (min_wrong - max_wrong) f         elsewhere

    f falls from 1 at T = 0 to 0 at max_length and beyond.

    Source: cosine reward, arXiv 2502.03373 section 4.1.
    """

    max_length: Annotated[int, Range("[1, inf)")]
    """Length at which the curve ends, tokens."""
    correct: str
    """Label of the reward that decides whether the response is correct (> 0.5)."""
    min_wrong: Annotated[float, Range("(-inf, inf)")] = -1.0
    """Reward of the shortest incorrect response."""
    max_wrong: Annotated[float, Range("(-inf, inf)")] = -0.5
    """Reward of the longest incorrect response."""
    min_correct: Annotated[float, Range("(-inf, inf)")] = 0.5
    """Reward of the longest correct response."""
    max_correct: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Reward of the shortest correct response."""

    @property
    def in_keys(self) -> tuple[tuple[str, ...], ...]:
        return (("rewards", self.correct),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        length = batch["loss_mask"].sum(1).float()
        curve = (1 + torch.cos(math.pi * (length / self.max_length).clamp(max=1))) / 2
        correct = self.min_correct + (self.max_correct - self.min_correct) * curve
        wrong = self.max_wrong + (self.min_wrong - self.max_wrong) * curve
        return torch.where(batch["rewards", self.correct] > 0.5, correct, wrong)
