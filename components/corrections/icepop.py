"""IcePop: importance weights between trainer and sampler, with tokens outside a range dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "icepop")
@dataclass(frozen=True, slots=True, kw_only=True)
class IcePop:
    """Importance weight u where ``low <= u <= high``; other tokens are dropped, [N, L]; 0 where masked.

        u = exp(clip(x, -20, 20)),   x = old_logprob - sampler_logprob
        level "sequence": x summed over the row

    A loss token whose x is not finite is dropped.

    Source: IcePop, Ring-1T 2510.18855. TRL's sequence_mask is level "sequence", low 0, high 3.
    """

    level: Literal["token", "sequence"] = "token"
    """Ratio of the token, or product of the ratios over its row."""
    low: Annotated[float, Range("[0, inf)")] = 0.5
    """Smallest ratio to keep, >= 0 and < high."""
    high: Annotated[float, Range("(0, inf]")] = 5.0
    """Largest ratio to keep; inf: no bound."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}.")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        ratio = mismatch.ratio(self.level)
        return mismatch.result(ratio, (ratio >= self.low) & (ratio <= self.high), ratio)
