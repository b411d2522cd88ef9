"""DeepSeek-V3.2's off-policy mask: drops rows of negative advantage with a large mismatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import masked_mean
from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "off_policy_mask")
@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyMask:
    """Mask that drops rows of negative advantage that have become unlikely under the trainer, [N, L].

        keep iff  mean_i A >= 0  or  mean_i(-x) <= threshold,   x = old_logprob - sampler_logprob

    Kept rows get weight 1. The mean of x runs over the row's finite loss tokens; a loss token whose x is
    not finite is dropped by itself. The comparison is with the *sampler's* log-probs.

    Source: DeepSeek-V3.2 2512.02556.
    """

    threshold: Annotated[float, Range("(-inf, inf)")] = 0.1
    """Largest mean log-ratio sampler / trainer of a row of negative advantage, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob", "advantage")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        advantage = masked_mean(batch["advantage"].double(), mismatch.loss_mask, -1, keepdim=True)
        drift = masked_mean(-mismatch.log_ratio.double(), mismatch.valid, -1, keepdim=True)
        keep = (advantage >= 0) | (drift <= self.threshold)
        return mismatch.result(mismatch.valid, keep, mismatch.ratio())
