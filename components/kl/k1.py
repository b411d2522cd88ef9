"""k1: the log-ratio, an unbiased estimate of the KL divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.components.kl.clamped import ClampedEstimator
from titanrl.registry import register

if TYPE_CHECKING:
    import torch


@register("kl", "k1")
@dataclass(frozen=True, slots=True, kw_only=True)
class K1(ClampedEstimator):
    """Log-ratio, elementwise, nats: an unbiased estimate of KL(policy || reference), of either sign.

        value = clip(d, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the reward, its policy gradient is that of the reverse KL: use it there. In the loss, its pathwise
    gradient is 1, whose expectation is 0: use straight_through_k2 there. No gradient reaches ref_logprob;
    the caller masks the result.

    Source: J. Schulman, "Approximating KL divergence", 2020. TRL, torchrl: no clamps.
    """

    matches: ClassVar[dict[str, str]] = {
        "value": "reverse KL",
        "loss, pathwise": "zero",
        "loss, straight_through_k2": "reverse KL",
        "reward": "reverse KL",
    }
    """Quantity that the expected value and gradient match on the policy's own samples, by use; see
    docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        return d
