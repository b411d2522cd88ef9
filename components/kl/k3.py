"""k3: unbiased, never negative, of small variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl.components.kl.clamped import ClampedEstimator
from titanrl.registry import register

EXPONENT_CLAMP = 80.0
"""Bound of -d inside exp, so that float32 stays finite when input_clamp is inf."""


@register("kl", "k3")
@dataclass(frozen=True, slots=True, kw_only=True)
class K3(ClampedEstimator):
    """Returns the unbiased estimate of small variance, elementwise, nats.

        value = clip(exp(-d) - 1 + d, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    Unbiased for KL(policy || reference) and never negative. In the loss its pathwise
    gradient is that of the *forward* KL(reference || policy), and output_clamp 10 hides its pull from
    tokens with d < -2.6: prefer straight_through_k2, or set output_clamp to inf, if the reference must be
    able to pull back. In the reward it is biased. No gradient reaches ref_logprob; values in masked places
    are the caller's to drop.

    Source: J. Schulman, "Approximating KL divergence", 2020; GRPO 2402.03300 eq. 4. Clamps 20 / 10 as verl
    and NeMo-RL; TRL has none.
    """

    output_clamp: float = 10.0
    """Bound of the value, nats, in (0, inf]."""
    matches: ClassVar[dict[str, str]] = {
        "value": "reverse KL",
        "loss, pathwise": "forward KL",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """What the expected value and gradient are on the policy's own samples, by use; see docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        bounded = d.clamp(min=-EXPONENT_CLAMP)
        return torch.expm1(-bounded) + bounded
