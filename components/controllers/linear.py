"""A coefficient that moves on a straight line."""

from __future__ import annotations

from dataclasses import dataclass

from titanrl.components.controllers.ramp import Ramp
from titanrl.registry import register


@register("kl_controller", "linear")
@dataclass(slots=True, kw_only=True)
class Linear(Ramp):
    """Moves the coefficient from `start` to `end` in `steps` training steps, and holds it there.

        coefficient(s) = start + (end - start) min(s / steps, 1)

    It depends on the step alone, not on the number of calls, nor on the KL.
    """

    def share(self, time: float) -> float:
        return time
