"""k2: half the squared log-ratio, whose gradient is that of the reverse KL divergence."""

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
    """Half the squared log-ratio, elementwise, nats: a biased estimate with the gradient of the reverse KL.

        value = clip(d^2 / 2, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the loss, the expectation of its pathwise gradient d is grad KL(policy || reference). No gradient
    reaches ref_logprob; the caller masks the result.

    Source: J. Schulman, "Approximating KL divergence", 2020.
    """

    matches: ClassVar[dict[str, str]] = {
        "value": "biased",
        "loss, pathwise": "reverse KL",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """Quantity that the expected value and gradient match on the policy's own samples, by use; see
    docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        return d.square() / 2
