"""k1: the log-ratio itself, unbiased."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.errors import check_range
from titanrl.ops.kl import Gradient, clamped_difference, estimate
from titanrl.registry import register

if TYPE_CHECKING:
    import torch


@register("kl", "k1")
@dataclass(frozen=True, slots=True, kw_only=True)
class K1:
    """Returns the log-ratio itself, elementwise, nats.

        value = clip(d, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    Unbiased for KL(policy || reference) and of either sign. In the reward its policy gradient is right: use
    it there. In the loss its pathwise gradient is 1, whose expectation is 0: use straight_through_k2 there.
    No gradient reaches ref_logprob; values in masked places are the caller's to drop.

    Source: J. Schulman, "Approximating KL divergence", 2020. TRL, torchrl: no clamps.
    """

    gradient: Gradient = "pathwise"
    """``pathwise``: 1, 0 where a clamp cuts. ``straight_through_k2``: d, not cut by output_clamp."""
    input_clamp: float = 20.0
    """Bound of |d|, nats, in (0, inf]."""
    output_clamp: float = math.inf
    """Bound of the value, nats, in (0, inf]."""
    matches: ClassVar[dict[str, str]] = {
        "value": "reverse KL",
        "loss, pathwise": "zero",
        "loss, straight_through_k2": "reverse KL",
        "reward": "reverse KL",
    }
    """What the expected value and gradient are on the policy's own samples, by use; see docs/kl.md."""

    def __post_init__(self) -> None:
        check_range(self, "input_clamp", "(0, inf]")
        check_range(self, "output_clamp", "(0, inf]")

    def __call__(self, logprob: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
        difference = clamped_difference(logprob, ref_logprob, self.input_clamp)
        return estimate(difference, difference, self.gradient, self.output_clamp)
