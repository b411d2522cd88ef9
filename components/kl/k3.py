"""k3: an unbiased, non-negative estimate of the KL divergence with low variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from titanrl.components.kl.clamped import ClampedEstimator
from titanrl.registry import Range, register

EXPONENT_CLAMP = 80.0
"""Bound of -d inside exp, so that float32 stays finite when input_clamp is inf."""


@register("kl", "k3")
@dataclass(frozen=True, slots=True, kw_only=True)
class K3(ClampedEstimator):
    """Low-variance estimate of KL(policy || reference), elementwise, nats: unbiased and never negative.

        value = clip(exp(-d) - 1 + d, -output_clamp, output_clamp)
        d     = clip(logprob - ref_logprob, -input_clamp, input_clamp)

    In the loss, its pathwise gradient is that of the *forward* KL(reference || policy), and output_clamp =
    10 removes the gradient on tokens with d < -2.6: use straight_through_k2, or output_clamp = inf, if the
    reference must pull such tokens back. In the reward, its gradient is biased. No gradient reaches
    ref_logprob; the caller masks the result.

    Source: J. Schulman, "Approximating KL divergence", 2020; GRPO 2402.03300 eq. 4. Clamps 20 / 10 as verl
    and NeMo-RL; TRL has none.
    """

    output_clamp: Annotated[float, Range("(0, inf]")] = 10.0
    """Bound of the value, nats."""
    matches: ClassVar[dict[str, str]] = {
        "value": "reverse KL",
        "loss, pathwise": "forward KL",
        "loss, straight_through_k2": "reverse KL",
        "reward": "biased",
    }
    """Quantity that the expected value and gradient match on the policy's own samples, by use; see
    docs/kl.md."""

    def value(self, d: torch.Tensor) -> torch.Tensor:
        bounded = d.clamp(min=-EXPONENT_CLAMP)
        return torch.expm1(-bounded) + bounded
