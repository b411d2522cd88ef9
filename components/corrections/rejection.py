"""Rejection: drops rows or tokens whose mismatch between trainer and sampler is out of bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.masked import masked_mean
from titanrl.ops.mismatch import CLAMP, Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "rejection")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Mask that keeps rows or tokens whose mismatch statistic is within bounds, [N, L].

        x = clip(old_logprob - sampler_logprob, -20, 20);   k1 = x,   k2 = x^2 / 2,   k3 = exp(x) - 1 - x
        k1:     keep iff log low <= statistic <= log high
        k2, k3: keep iff statistic <= high

    Kept tokens get weight 1. The statistic is reduced over the row's finite loss tokens; reduce "token"
    compares each token by itself. The bounds of k1 are on the ratio trainer / sampler (sum: on its product
    over the row, mean: on its geometric mean). A loss token whose x is not finite is dropped.

    Source: sequence masks as in TRL and verl; verl states its k1 bounds on sampler / trainer: invert them.
    On short rows, mean with 0.99 and 1.01 rejects nearly all rows.
    """

    statistic: Literal["k1", "k2", "k3"] = "k1"
    """Statistic to bound."""
    reduce: Literal["token", "sum", "mean", "max"] = "mean"
    """Reduction over a row's tokens; max only for k2 and k3, because k1 has a sign."""
    low: Annotated[float, Range("[0, inf)")] = 0.0
    """Lower bound of the ratio; 0: none. Not used by k2 and k3."""
    high: Annotated[float, Range("(0, inf]")] = math.inf
    """Upper bound, > low: of the ratio for k1 (inf: none), in nats for k2 and k3 (finite)."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}.")
        if self.statistic == "k1":
            if self.reduce == "max":
                raise ValueError("reduce must be 'token', 'sum' or 'mean' for statistic 'k1', got 'max'.")
        elif self.high == math.inf:
            raise ValueError(f"high must be finite for statistic {self.statistic!r}, got inf.")
        elif self.low != 0:
            raise ValueError(f"low must be 0 for statistic {self.statistic!r}, got {self.low}.")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        value = self._reduced(mismatch)
        keep = value <= (math.log(self.high) if self.statistic == "k1" else self.high)
        if self.statistic == "k1" and self.low > 0:
            keep = keep & (value >= math.log(self.low))
        return mismatch.result(mismatch.valid, keep, mismatch.ratio())

    def _reduced(self, mismatch: Mismatch) -> torch.Tensor:
        """Returns the statistic, [N, L] for reduce "token" and [N, 1] otherwise, float64."""
        x = mismatch.log_ratio.clamp(-CLAMP, CLAMP).double()
        if self.statistic == "k2":
            x = x.square() / 2
        elif self.statistic == "k3":
            x = torch.expm1(x) - x
        if self.reduce == "sum":
            return x.sum(-1, keepdim=True)
        if self.reduce == "mean":
            return masked_mean(x, mismatch.valid, -1, keepdim=True)
        return x.amax(-1, keepdim=True) if self.reduce == "max" else x
