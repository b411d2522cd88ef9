"""Veto: drops every row that has a token with an extreme ratio between trainer and sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "veto")
@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """Mask that drops rows with any token ratio outside [low, high], [N, L].

        u = exp(clip(x, -20, 20)),  x = old_logprob - sampler_logprob

    Kept rows get weight 1. A loss token whose x is not finite is dropped by itself.

    Source: the token veto of verl's rollout correction.
    """

    low: Annotated[float, Range("(0, inf)")] = 1e-4
    """Smallest ratio that does not drop the row, > 0 and < high."""
    high: Annotated[float, Range("(0, inf]")] = 100.0
    """Largest ratio that does not drop the row."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}.")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        ratio = mismatch.ratio()
        vetoed = mismatch.valid & ((ratio < self.low) | (ratio > self.high))
        return mismatch.result(mismatch.valid, ~vetoed.any(-1, keepdim=True), ratio)
