"""Held-out score of the current policy, with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["interval", "pass_at_k"]

Z95 = 1.959964


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of the mean of ``scores``, each in [0, 1] or any finite number.

    Right-or-wrong scores get Wilson's interval, which holds at 0 and 1 too; others the mean +- 1.96 standard
    errors.
    """
    n = len(scores)
    mean = sum(scores) / n
    if set(scores) <= {0.0, 1.0}:
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n))
        return max(centre - half, 0.0), min(centre + half, 1.0)
    if n == 1:
        return -math.inf, math.inf
    error = math.sqrt(sum((score - mean) ** 2 for score in scores) / (n - 1) / n)
    return mean - Z95 * error, mean + Z95 * error


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the unbiased chance that one of ``k`` answers is right: ``1 - C(n-c, k) / C(n, k)``.

    Source: Chen et al., arXiv 2107.03374.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
