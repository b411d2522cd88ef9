"""M2PO: drops the tokens of largest squared log-ratio until the second moment is below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "m2po")
@dataclass(frozen=True, slots=True, kw_only=True)
class M2PO:
    """Mask that bounds the second moment of the log-ratio between trainer and sampler, [N, L].

    Kept tokens get weight 1. Tokens of the batch are dropped in descending order of x^2, x = old_logprob -
    sampler_logprob, until the mean of x^2 over the rest is below the threshold; ties are dropped in
    row-major order. At least one token is kept. A loss token whose x is not finite is dropped beforehand.

    Source: M2PO 2510.01161.
    """

    threshold: Annotated[float, Range("(0, inf)")] = 0.04
    """Bound of the mean squared log-ratio of the kept tokens, nats^2."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        squared = mismatch.log_ratio[mismatch.valid].double().square()
        order = squared.sort(descending=True, stable=True).indices
        # mean_of_rest[k] is the mean after the k largest are dropped; it falls with k.
        counts = torch.arange(len(order), 0, -1, device=order.device)
        mean_of_rest = squared[order].flip(0).cumsum(0).flip(0) / counts
        num_dropped = (mean_of_rest >= self.threshold).sum().clamp_max(max(len(order) - 1, 0))
        is_kept = torch.ones_like(order, dtype=torch.bool)
        is_kept[order] = torch.arange(len(order), device=order.device) >= num_dropped
        keep = mismatch.valid.masked_scatter(mismatch.valid, is_kept)
        return mismatch.result(mismatch.valid, keep, mismatch.ratio())
