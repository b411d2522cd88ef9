"""Cosine schedule of a coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from titanrl.components.controllers.ramp import Ramp
from titanrl.registry import register


@register("kl_controller", "cosine")
@dataclass(slots=True, kw_only=True)
class Cosine(Ramp):
    """Cosine schedule from `start` to `end` over `steps` training steps, then constant.

        coefficient(s) = end + (start - end) (1 + cos(pi min(s / steps, 1))) / 2

    It depends on the training step alone, not on the number of calls or on the KL.
    """

    def completed(self, time: float) -> float:
        return (1 - math.cos(math.pi * time)) / 2
