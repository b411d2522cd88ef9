"""A coefficient that keeps the KL near a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from titanrl.errors import check_range
from titanrl.registry import register


@register("kl_controller", "adaptive")
@dataclass(slots=True, kw_only=True)
class Adaptive:
    """Raises the coefficient while the KL is above its target, and lowers it below.

        coefficient *= 1 + clip(kl / target - 1, -clip, clip) num_sequences / horizon

    `num_sequences` counts sequences, so twice the batch adapts twice as fast. The coefficient after the
    update of step s holds for step s + 1.

    Source: 1909.08593 section 2.2.
    """

    coefficient: float = 0.001
    """Where it starts, > 0."""
    target: float = 0.1
    """Wanted mean KL, nats, > 0."""
    horizon: int = 10000
    """Sequences over which a KL far from its target would change the coefficient by about `clip`, >= 1."""
    clip: float = 0.2
    """Bound of the relative error, in (0, 1)."""

    def __post_init__(self) -> None:
        check_range(self, "coefficient", "(0, inf)")
        check_range(self, "target", "(0, inf)")
        check_range(self, "horizon", "[1, inf)")
        check_range(self, "clip", "(0, 1)")

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1 from this step's global mean KL, nats.

        Raises:
            ValueError: kl is NaN, or one step would turn the coefficient's sign.
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
        """Returns the present coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
