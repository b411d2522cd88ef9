"""abs: the size of the log-ratio; a penalty, not a KL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.errors import check_range
from titanrl.ops.kl import Gradient, clamped_difference, estimate
from titanrl.registry import register

if TYPE_CHECKING:
    import torch


@register("kl", "abs")
@dataclass(frozen=True, slots=True, kw_only=True)
class Abs:
    """Returns the size of the log-ratio, elementwise, nats: a penalty, not a KL.

        value = clip(|d|, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the loss the expectation of its pathwise gradient sign(d) is that of
    `sum |policy - reference|`, twice the total variation. No gradient reaches ref_logprob; values in masked
    places are the caller's to drop.

    Source: verl's "abs".
    """

    gradient: Gradient = "pathwise"
    """``pathwise``: sign(d), 0 where a clamp cuts. ``straight_through_k2``: d, not cut by output_clamp."""
    input_clamp: float = 20.0
    """Bound of |d|, nats, in (0, inf]."""
    output_clamp: float = math.inf
    """Bound of the value, nats, in (0, inf]."""
    matches: ClassVar[dict[str, str]] = {
        "value": "biased",
        "loss, pathwise": "total variation",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """What the expected value and gradient are on the policy's own samples, by use; see docs/kl.md."""

    def __post_init__(self) -> None:
        check_range(self, "input_clamp", "(0, inf]")
        check_range(self, "output_clamp", "(0, inf]")

    def __call__(self, logprob: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
        difference = clamped_difference(logprob, ref_logprob, self.input_clamp)
        return estimate(difference.abs(), difference, self.gradient, self.output_clamp)
