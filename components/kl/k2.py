"""k2: half the squared log-ratio; its gradient is that of the reverse KL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.components.kl.clamped import ClampedEstimator
from titanrl.registry import register

if TYPE_CHECKING:
    import torch


@register("kl", "k2")
@dataclass(frozen=True, slots=True, kw_only=True)
class K2(ClampedEstimator):
    """Returns half the squared log-ratio, elementwise, nats.

        value = clip(d^2 / 2, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    A biased value with the right gradient: in the loss its pathwise gradient d has the expectation grad
    KL(policy || reference). No gradient reaches ref_logprob; values in masked places are the caller's to
    drop.

    Source: J. Schulman, "Approximating KL divergence", 2020.
    """

    matches: ClassVar[dict[str, str]] = {
        "value": "biased",
        "loss, pathwise": "reverse KL",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """What the expected value and gradient are on the policy's own samples, by use; see docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        return d.square() / 2
