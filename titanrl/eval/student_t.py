"""Student's t distribution."""

from __future__ import annotations

import math
from functools import cache

__all__ = ["t_cdf", "t_quantile"]


def t_cdf(t: float, df: int) -> float:
    """Return the distribution function of Student's t for integer degrees of freedom, in closed form.

    With theta = atan(t / sqrt(df)), it is a finite sum of powers of cos(theta).
    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.

    Args:
        t: argument.
        df: degrees of freedom, >= 1.
    """
    theta = math.atan2(t, math.sqrt(df))
    sine, square = math.sin(theta), math.cos(theta) ** 2
    is_odd = df % 2 == 1
    term = math.cos(theta) if is_odd else 1.0
    total = 0.0
    for j in range(1, (df - 1) // 2 + 1) if is_odd else range(1, df // 2 + 1):
        total += term
        term *= square * (2 * j / (2 * j + 1) if is_odd else (2 * j - 1) / (2 * j))
    central = (theta + sine * total) * 2 / math.pi if is_odd else sine * total
    return (1 + central) / 2


@cache
def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t at probability ``p``, in (0, 1), by bisection."""
    low, high = -1.0, 1.0
    while t_cdf(low, df) > p:
        low *= 2
    while t_cdf(high, df) < p:
        high *= 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
