"""Constant coefficient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from titanrl.registry import Range, register


@register("kl_controller", "fixed")
@dataclass(slots=True, kw_only=True)
class Fixed:
    """Constant coefficient, `coefficient(s) = coefficient`."""

    coefficient: Annotated[float, Range("[0, inf)")] = 0.001
    """Value of the coefficient."""

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Does nothing: the coefficient is constant."""

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the coefficient is a setting, which a resumed run may change."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores nothing."""
