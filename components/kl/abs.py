"""abs: absolute log-ratio, a penalty that is not a KL estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.components.kl.clamped import ClampedEstimator
from titanrl.registry import register

if TYPE_CHECKING:
    import torch


@register("kl", "abs")
@dataclass(frozen=True, slots=True, kw_only=True)
class Abs(ClampedEstimator):
    """Absolute log-ratio, elementwise, nats: a penalty, not an estimate of the KL divergence.

        value = clip(|d|, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the loss, the expectation of its pathwise gradient sign(d) is the gradient of `sum |policy -
    reference|`, twice the total variation. No gradient reaches ref_logprob; the caller masks the result.

    Source: verl's "abs".
    """

    matches: ClassVar[dict[str, str]] = {
        "value": "biased",
        "loss, pathwise": "total variation",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """Quantity that the expected value and gradient match on the policy's own samples, by use; see
    docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        return d.abs()
