"""What the schedules share: a way from one coefficient to another in a number of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from titanrl.errors import check_range

__all__ = ["Ramp"]


@dataclass(slots=True, kw_only=True)
class Ramp(ABC):
    """A coefficient that depends on the step alone, not on the number of calls, nor on the KL."""

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

    @abstractmethod
    def share(self, time: float) -> float:
        """Returns the share of the way that lies behind at ``time``; both run from 0 to 1."""

    def _at(self, step: int) -> float:
        share = self.share(min(step / self.steps, 1.0))
        return (1 - share) * self.start + share * self.end

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1."""
        self.coefficient = self._at(step + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the present coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
