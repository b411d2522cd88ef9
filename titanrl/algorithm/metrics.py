"""Metrics as partial sums that add: metric(whole) == metric(any split over chunks, micro-batches, ranks)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Sums", "add", "means"]

Sums: TypeAlias = dict[str, tuple[float, float]]
"""Metric name -> (sum, count)."""


def add(left: Mapping[str, tuple[float, float]], right: Mapping[str, tuple[float, float]]) -> Sums:
    """Returns the sums of two parts of a batch, taken together."""
    total = dict(left)
    for name, (value, count) in right.items():
        base, base_count = total.get(name, (0.0, 0.0))
        total[name] = (base + value, base_count + count)
    return total


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns sum / count of each metric; one with nothing to average, or that is NaN, is left out."""
    found = {name: value / count for name, (value, count) in sums.items() if count}
    return {name: value for name, value in found.items() if not math.isnan(value)}
