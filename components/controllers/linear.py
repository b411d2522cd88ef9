"""Linear schedule of a coefficient."""

from __future__ import annotations

from dataclasses import dataclass

from titanrl.components.controllers.ramp import Ramp
from titanrl.registry import register


@register("kl_controller", "linear")
@dataclass(slots=True, kw_only=True)
class Linear(Ramp):
    """Linear schedule from `start` to `end` over `steps` training steps, then constant.

        coefficient(s) = start + (end - start) min(s / steps, 1)

    It depends on the training step alone, not on the number of calls or on the KL.
    """

    def completed(self, time: float) -> float:
        return time
