"""Base of the schedules: a transition between two coefficients over a number of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any

from titanrl.registry import Range

__all__ = ["Ramp"]


@dataclass(slots=True, kw_only=True)
class Ramp(ABC):
    """Schedule of a coefficient that depends on the training step alone."""

    start: Annotated[float, Range("[0, inf)")]
    """Coefficient at step 0."""
    end: Annotated[float, Range("[0, inf)")]
    """Coefficient from step `steps` on."""
    steps: Annotated[int, Range("[1, inf)")]
    """Number of training steps of the transition."""
    coefficient: float = field(init=False)
    """Current coefficient."""

    def __post_init__(self) -> None:
        self.coefficient = self._at(0)

    @abstractmethod
    def completed(self, time: float) -> float:
        """Returns the completed fraction of the transition at ``time``; both run from 0 to 1."""

    def _at(self, step: int) -> float:
        completed = self.completed(min(step / self.steps, 1.0))
        return (1 - completed) * self.start + completed * self.end

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Sets the coefficient of step + 1."""
        self.coefficient = self._at(step + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the current coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the coefficient that state_dict() returned."""
        self.coefficient = float(state_dict["coefficient"])
