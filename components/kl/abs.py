"""abs: the size of the log-ratio; a penalty, not a KL."""

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
    """Returns the size of the log-ratio, elementwise, nats: a penalty, not a KL.

        value = clip(|d|, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the loss the expectation of its pathwise gradient sign(d) is that of
    `sum |policy - reference|`, twice the total variation. No gradient reaches ref_logprob; values in masked
    places are the caller's to drop.

    Source: verl's "abs".
    """

    matches: ClassVar[dict[str, str]] = {
        "value": "biased",
        "loss, pathwise": "total variation",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """What the expected value and gradient are on the policy's own samples, by use; see docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        return d.abs()
