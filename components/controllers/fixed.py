"""Constant coefficient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from titanrl.errors import check_range
from titanrl.registry import register


@register("kl_controller", "fixed")
@dataclass(slots=True, kw_only=True)
class Fixed:
    """Constant coefficient, `coefficient(s) = coefficient`."""

    coefficient: float = 0.001
    """Value of the coefficient."""

    def __post_init__(self) -> None:
        check_range(self, "coefficient", "[0, inf)")

    def update(self, kl: float, num_sequences: int, step: int) -> None:
        """Does nothing: the coefficient is constant."""

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the coefficient is a setting, which a resumed run may change."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores nothing."""
