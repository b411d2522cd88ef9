"""Adaptive entropy coefficient that keeps the entropy near a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from titanrl.registry import Range, register


@register("kl_controller", "entropy_target")
@dataclass(slots=True, kw_only=True)
class EntropyTarget:
    """Controller that raises the coefficient while the entropy is at or below its target, and lowers it
    above.

        coefficient = clip(coefficient + (step_size if H <= target else -step_size), minimum, maximum)

    For [algorithm.entropy]: the first argument of `update` is the step's mean entropy H in nats.

    Source: Skywork-OR1 2505.22312.
    """

    coefficient: Annotated[float, Range("[0, inf)")] = 0.0
    """Initial coefficient."""
    target: Annotated[float, Range("[0, inf)")] = 0.2
    """Target of the mean entropy, nats."""
    step_size: Annotated[float, Range("(0, inf)")] = 0.005
    """Change of the coefficient per training step."""
    minimum: Annotated[float, Range("[0, inf)")] = 0.0
    """Lower bound of the coefficient."""
    maximum: Annotated[float, Range("[minimum, inf)")] = 1.0
    """Upper bound of the coefficient, >= minimum."""
    controls: ClassVar[str] = "entropy"
    """Quantity that `update` receives."""

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1; ``kl`` is this step's mean entropy, nats.

        Raises:
            ValueError: it is NaN.
        """
        if math.isnan(kl):
            raise ValueError(
                f"entropy must be a number, got {kl} in step {step}; the policy's logits are not finite."
            )
        coefficient = self.coefficient + (self.step_size if kl <= self.target else -self.step_size)
        self.coefficient = min(max(coefficient, self.minimum), self.maximum)

    def state_dict(self) -> dict[str, Any]:
        """Returns the current coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the coefficient that state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
