"""M2PO: the tokens of largest squared log-ratio are dropped until the second moment is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.mismatch import Mismatch
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "m2po")
@dataclass(frozen=True, slots=True, kw_only=True)
class M2PO:
    """Returns weight 1 and keep on the tokens that remain, [N, L]; 0 and false elsewhere.

    Over the whole batch, tokens are dropped in the order of falling x^2, x = old_logprob - sampler_logprob,
    until the mean of x^2 over the rest is below the threshold; ties: the first in row-major order goes first.
    One token always stays. A trainable token whose x is not finite is dropped beforehand.

    Source: M2PO 2510.01161.
    """

    threshold: float = 0.04
    """Bound of the mean squared log-ratio of what remains, nats^2, > 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __post_init__(self) -> None:
        check_range(self, "threshold", "(0, inf)")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        squares = mismatch.log_ratio[mismatch.valid].double().square()
        order = squares.sort(descending=True, stable=True).indices
        # rest[k]: mean of what remains once the k largest are dropped; it falls with k.
        counts = torch.arange(len(order), 0, -1, device=order.device)
        rest = squares[order].flip(0).cumsum(0).flip(0) / counts
        num_dropped = (rest >= self.threshold).sum().clamp_max(max(len(order) - 1, 0))
        stays = torch.ones_like(order, dtype=torch.bool)
        stays[order] = torch.arange(len(order), device=order.device) >= num_dropped
        keep = mismatch.valid.masked_scatter(mismatch.valid, stays)
        return mismatch.result(mismatch.valid, keep, mismatch.ratio())
