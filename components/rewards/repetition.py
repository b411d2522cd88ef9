"""Repetition penalty on n-grams of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Repetition"]


@register("reward", "repetition")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Penalty for repeated n-grams: 0 if all differ, towards max_penalty if all are the same.

        reward = max_penalty (1 - unique / total),  over the n-grams of the row's loss tokens

    A row with fewer than n loss tokens gets 0.

    Source: n-gram repetition penalty, arXiv 2502.03373 appendix.
    """

    n: Annotated[int, Range("[1, inf)")] = 3
    """Length of an n-gram, tokens."""
    max_penalty: Annotated[float, Range("(-inf, 0]")] = -1.0
    """Reward that endless repetition approaches."""
    in_keys: ClassVar[tuple[str, ...]] = ("labels",)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in (max_penalty, 0]."""
        rows = zip(batch["labels"], batch["loss_mask"], strict=True)
        return torch.tensor(
            [self._penalty(labels[mask].tolist()) for labels, mask in rows], dtype=torch.float32
        )

    def _penalty(self, ids: list[int]) -> float:
        total = len(ids) - self.n + 1
        if total < 1:
            return 0.0
        unique = len({tuple(ids[start : start + self.n]) for start in range(total)})
        return self.max_penalty * (1 - unique / total)
