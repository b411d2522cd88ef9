"""Honest numbers of few seeds: t intervals, paired bootstrap, exact sign-flip tests, Holm's correction.

Pure functions of numbers. Nothing here is random: what would need too many cases to enumerate is drawn with a
fixed seed.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import NormalDist, fmean, stdev

__all__ = ["bootstrap_interval", "holm", "least_p", "mean_interval", "sign_flip_p", "t_cdf", "t_quantile"]

MAX_RESAMPLES = 20_000
"""Most cases enumerated; beyond it as many are drawn."""
MAX_EXACT_PAIRS = 28
"""Most pairs whose signs are all tried: two halves of 2^14 sums."""


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Returns the mean and the ends of its interval by Student's t; one value: infinite ends."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = t_quantile((1 + level) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def bootstrap_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Returns the interval of the mean of paired differences by the expanded percentile bootstrap.

    All n^n resamples are taken up to n = 5, else 20,000. The plain percentile interval is too short for few
    pairs: it lacks the t quantile and divides by n. So its tails are those at which a normal distribution has
    the t interval's length,

        tail = Phi(-sqrt(n / (n - 1)) t_{(1 + level) / 2, n - 1})

    Source: Hesterberg, What Teachers Should Know about the Bootstrap, arXiv 1411.5279, section 4.2.

    Args:
        differences: one a pair, at least 2.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"differences must be of at least 2 pairs, got {n}.")
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile((1 + level) / 2, n - 1))
    means = sorted(sum(each) / n for each in _resamples(differences))
    # The interval holds all means but floor(tail * count) at either end.
    left_out = math.floor(tail * len(means))
    return means[left_out], means[-1 - left_out]


def sign_flip_p(differences: Sequence[float]) -> float:
    """Returns the two-sided p of "the signs of the differences are arbitrary": exact up to 28 pairs.

    The share of the 2^n choices of signs whose sum is at least as far from 0 as that found; so p >= 2 / 2^n.
    Each half's sums are listed, and pairs that reach so far are counted in the sorted one. Beyond 28 pairs
    20,000 choices are drawn.
    """
    n = len(differences)
    # Sums that differ by rounding only are equal.
    bound = abs(math.fsum(differences)) - 1e-12 * math.fsum(map(abs, differences))
    if bound <= 0:
        return 1.0
    if n > MAX_EXACT_PAIRS:
        draw = random.Random(0)
        found = (math.fsum(draw.choice((1, -1)) * each for each in differences) for _ in range(MAX_RESAMPLES))
        # The observed signs are a case too, so that p is never 0.
        return (sum(abs(each) >= bound for each in found) + 1) / (MAX_RESAMPLES + 1)
    left, right = _signed_sums(differences[: n // 2]), sorted(_signed_sums(differences[n // 2 :]))
    as_far = sum(
        len(right) - bisect_left(right, bound - each) + bisect_right(right, -bound - each) for each in left
    )
    return math.ldexp(as_far, -n)


def least_p(num_pairs: int) -> float:
    """Returns the smallest p that ``sign_flip_p`` can give: all differences of one sign."""
    return 2.0 ** (1 - num_pairs) if num_pairs <= MAX_EXACT_PAIRS else 1 / (MAX_RESAMPLES + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Returns Holm's adjusted p of each: the chance of any false alarm among them stays below a level.

    In rising order, p_(i) (m - i + 1), made rising and at most 1.
    """
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda each: ps[each])):
        highest = max(highest, min(ps[index] * (len(ps) - rank), 1.0))
        adjusted[index] = highest
    return adjusted


def t_cdf(t: float, df: int) -> float:
    """Returns the distribution function of Student's t for whole degrees of freedom, >= 1, in closed form.

    With theta = atan(t / sqrt(df)) it is a finite sum of powers of cos(theta).
    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
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
    """Returns the number below which Student's t lies with probability ``p``, in (0, 1), by bisection."""
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


def _signed_sums(values: Sequence[float]) -> list[float]:
    """Returns the sums of the 2^n choices of signs."""
    sums = [0.0]
    for value in values:
        sums = [each + signed for each in sums for signed in (value, -value)]
    return sums


def _resamples(values: Sequence[float]) -> Iterator[Sequence[float]]:
    n = len(values)
    if n**n <= MAX_RESAMPLES:
        yield from itertools.product(values, repeat=n)
    else:
        draw = random.Random(0)
        for _ in range(MAX_RESAMPLES):
            yield draw.choices(values, k=n)
