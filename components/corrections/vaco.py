"""VACO: drops the tokens of drifted rows whose update would widen the drift."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import masked_mean
from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "vaco")
@dataclass(frozen=True, slots=True, kw_only=True)
class VACO:
    """Truncated importance weight that drops widening tokens in rows far from the sampler, [N, L].

        weight = min(u, cap),   u = exp(clip(x, -20, 20)),   x = old_logprob - sampler_logprob
        in rows with mean_i |u - 1| > threshold, tokens with sign(x) A > 0 are dropped

    The update of such a token would increase the difference that the row already has. The mean runs over the
    row's finite loss tokens; a loss token whose x is not finite is dropped.

    Source: VACO 2603.01365. No published default of the threshold is known.
    """

    threshold: Annotated[float, Range("(0, inf)")]
    """Largest mean |u - 1| of a row that keeps all of its tokens."""
    cap: Annotated[float, Range("(0, inf]")] = 2.0
    """Upper bound of the weight."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob", "advantage")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        ratio = mismatch.ratio()
        distance = masked_mean((ratio - 1).abs().double(), mismatch.valid, -1, keepdim=True)
        widens = mismatch.log_ratio.sign() * batch["advantage"] > 0
        weight = ratio if self.cap == math.inf else ratio.clamp(max=self.cap)
        return mismatch.result(weight, ~((distance > self.threshold) & widens), ratio)
