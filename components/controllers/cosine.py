"""A coefficient that moves on half a cosine wave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from titanrl.errors import check_range
from titanrl.registry import register


@register("kl_controller", "cosine")
@dataclass(slots=True, kw_only=True)
class Cosine:
    """Moves the coefficient from `start` to `end` in `steps` training steps, and holds it there.

        coefficient(s) = end + (start - end) (1 + cos(pi min(s / steps, 1))) / 2

    It depends on the step alone, not on the number of calls, nor on the KL.
    """

    start: float
    """Coefficient of step 0, >= 0."""
    end: float
    """Coefficient from step `steps` on, >= 0."""
    steps: int
    """Training steps that the way takes, >= 1."""
    coefficient: float = field(init=False)
    """The present value."""

    def __post_init__(self) -> None:
        check_range(self, "start", "[0, inf)")
        check_range(self, "end", "[0, inf)")
        check_range(self, "steps", "[1, inf)")
        self.coefficient = self._at(0)

    def _at(self, step: int) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1."""
        self.coefficient = self._at(step + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the present coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
