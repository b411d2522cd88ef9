"""Base of the KL estimators: clamps and the choice of gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from titanrl.ops.kl import Gradient, clamped_difference, estimate
from titanrl.registry import Range

if TYPE_CHECKING:
    import torch

__all__ = ["ClampedEstimator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedEstimator(ABC):
    """KL estimator that is a function of the clamped log-ratio."""

    gradient: Gradient = "pathwise"
    """pathwise: the derivative of the value, 0 where a clamp is active. straight_through_k2: the gradient
    of k2, d, which output_clamp does not cut."""
    input_clamp: Annotated[float, Range("(0, inf]")] = 20.0
    """Bound of the absolute log-ratio |d|, nats."""
    output_clamp: Annotated[float, Range("(0, inf]")] = math.inf
    """Bound of the value, nats."""

    @abstractmethod
    def value(self, d: torch.Tensor) -> torch.Tensor:
        """Returns the estimate for clamped log-ratios ``d``, elementwise, nats."""

    def __call__(self, logprob: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
        d = clamped_difference(logprob, ref_logprob, self.input_clamp)
        return estimate(self.value(d), d, self.gradient, self.output_clamp)
