"""A coefficient that moves on half a cosine wave."""

from __future__ import annotations

import math
from dataclasses import dataclass

from titanrl.components.controllers.ramp import Ramp
from titanrl.registry import register


@register("kl_controller", "cosine")
@dataclass(slots=True, kw_only=True)
class Cosine(Ramp):
    """Moves the coefficient from `start` to `end` in `steps` training steps, and holds it there.

        coefficient(s) = end + (start - end) (1 + cos(pi min(s / steps, 1))) / 2

    It depends on the step alone, not on the number of calls, nor on the KL.
    """

    def share(self, time: float) -> float:
        return (1 - math.cos(math.pi * time)) / 2
