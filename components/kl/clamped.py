"""What the KL estimators share: their keys, the clamps, and the choice of gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrl.errors import check_range
from titanrl.ops.kl import Gradient, clamped_difference, estimate

if TYPE_CHECKING:
    import torch

__all__ = ["ClampedEstimator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedEstimator(ABC):
    """A KL estimator that is a function of the clamped log-ratio."""

    gradient: Gradient = "pathwise"
    """``pathwise``: the value's own derivative, 0 where a clamp cuts. ``straight_through_k2``: d, not cut by
    output_clamp."""
    input_clamp: float = 20.0
    """Bound of |d|, nats, in (0, inf]."""
    output_clamp: float = math.inf
    """Bound of the value, nats, in (0, inf]."""

    def __post_init__(self) -> None:
        check_range(self, "input_clamp", "(0, inf]")
        check_range(self, "output_clamp", "(0, inf]")

    @abstractmethod
    def value(self, d: torch.Tensor) -> torch.Tensor:
        """Returns the estimate for clamped log-ratios ``d``, elementwise, nats."""

    def __call__(self, logprob: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
        d = clamped_difference(logprob, ref_logprob, self.input_clamp)
        return estimate(self.value(d), d, self.gradient, self.output_clamp)
