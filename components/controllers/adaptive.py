"""Adaptive KL coefficient that keeps the KL divergence near a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from titanrl.registry import Range, register


@register("kl_controller", "adaptive")
@dataclass(slots=True, kw_only=True)
class Adaptive:
    """Proportional controller that keeps the mean KL near a target.

        coefficient *= 1 + clip(kl / target - 1, -clip, clip) num_sequences / horizon

    `num_sequences` is the number of sequences of the step, so a batch of twice the size adapts twice as
    fast. The coefficient set after step s is used in step s + 1.

    Source: 1909.08593 section 2.2.
    """

    coefficient: Annotated[float, Range("(0, inf)")] = 0.001
    """Initial coefficient."""
    target: Annotated[float, Range("(0, inf)")] = 0.1
    """Target of the mean KL, nats."""
    horizon: Annotated[int, Range("[1, inf)")] = 10000
    """Number of sequences over which a KL far from its target changes the coefficient by a fraction of
    about `clip`."""
    clip: Annotated[float, Range("(0, 1)")] = 0.2
    """Bound of the relative error."""

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1 from this step's global mean KL, nats.

        Raises:
            ValueError: kl is NaN, or one step would change the coefficient's sign.
        """
        if math.isnan(kl):
            raise ValueError(
                f"kl must be a number, got {kl} in step {step}; the policy's log-probs are not finite."
            )
        error = min(max(kl / self.target - 1, -self.clip), self.clip)
        factor = 1 + error * num_sequences / self.horizon
        if factor <= 0:
            raise ValueError(
                f"horizon must be > clip * sequences of a step = {self.clip * num_sequences:g}, "
                f"got {self.horizon}; raise it."
            )
        self.coefficient *= factor

    def state_dict(self) -> dict[str, Any]:
        """Returns the current coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the coefficient that state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
