"""A penalty for saying the same n tokens again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Repetition"]


@register("reward", "repetition")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """max_penalty * (1 - unique / total) over the n-grams of the trainable label ids; fewer than n tokens: 0.

    Source: n-gram repetition penalty, arXiv 2502.03373 appendix.
    """

    n: int = 3
    """Tokens of an n-gram, >= 1."""
    max_penalty: float = -1.0
    """Value of endless repetition, <= 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("labels",)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n must be >= 1, got {self.n}.")
        if not -math.inf < self.max_penalty <= 0:
            raise ValueError(f"max_penalty must be in (-inf, 0], got {self.max_penalty}.")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in (max_penalty, 0]."""
        rows = zip(batch["labels"], batch["loss_mask"], strict=True)
        return torch.tensor(
            [self._value(labels[mask].tolist()) for labels, mask in rows], dtype=torch.float32
        )

    def _value(self, ids: list[int]) -> float:
        total = len(ids) - self.n + 1
        if total < 1:
            return 0.0
        unique = len({tuple(ids[start : start + self.n]) for start in range(total)})
        return self.max_penalty * (1 - unique / total)
