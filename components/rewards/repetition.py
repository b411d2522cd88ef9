"""A penalty for saying the same n tokens again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Repetition"]


@register("reward", "repetition")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Returns a penalty for repeated n-grams: 0 where all differ, towards max_penalty where all are one.

        reward = max_penalty (1 - unique / total),  over the n-grams of the row's trainable label ids

    Fewer than n tokens: 0.

    Source: n-gram repetition penalty, arXiv 2502.03373 appendix.
    """

    n: int = 3
    """Tokens of an n-gram, >= 1."""
    max_penalty: float = -1.0
    """Value of endless repetition, <= 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("labels",)

    def __post_init__(self) -> None:
        check_range(self, "n", "[1, inf)")
        check_range(self, "max_penalty", "(-inf, 0]")

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
