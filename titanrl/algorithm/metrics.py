"""Metrics as (sum, count), which add up over chunks, micro-batches and ranks to those of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Sums", "add", "means"]

Sums: TypeAlias = dict[str, tuple[float, float]]
"""Metric name -> (sum, count)."""


def add(left: Mapping[str, tuple[float, float]], right: Mapping[str, tuple[float, float]]) -> Sums:
    """Returns the sums of two parts of a batch added together."""
    total = dict(left)
    for name, (value, count) in right.items():
        base, base_count = total.get(name, (0.0, 0.0))
        total[name] = (base + value, base_count + count)
    return total


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns sum / count of each metric; metrics with count 0 or mean NaN are absent."""
    averages = {name: value / count for name, (value, count) in sums.items() if count}
    return {name: value for name, value in averages.items() if not math.isnan(value)}
