"""Statistics for few seeds: t intervals, paired bootstrap, exact sign-flip tests, Holm's correction.

All functions are pure and deterministic: if there are too many cases to enumerate, cases are sampled with
a fixed seed.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from statistics import NormalDist, fmean, stdev

from titanrl.eval.student_t import t_quantile

__all__ = ["bootstrap_interval", "holm", "mean_interval", "min_p", "sign_flip_p"]

LEVEL = 0.95
"""Confidence level of all intervals."""
MAX_RESAMPLES = 20_000
"""Maximum number of enumerated cases; if there are more, this number is sampled."""
MAX_EXACT_PAIRS = 28
"""Maximum number of pairs whose sign choices are all enumerated: two halves of 2^14 sums."""


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the bounds of its Student's t interval; those of a single value are infinite."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the mean of paired differences by the expanded percentile bootstrap.

    Up to n = 5 all n^n resamples are enumerated, otherwise 20,000 are sampled. The plain percentile interval
    is too short for few pairs: it lacks the t quantile and divides by n. The tails are therefore those at
    which a normal distribution has the length of the t interval,

        tail = Phi(-sqrt(n / (n - 1)) t_{(1 + level) / 2, n - 1})

    Source: Hesterberg, What Teachers Should Know about the Bootstrap, arXiv 1411.5279, section 4.2.

    Args:
        differences: one difference per pair, at least 2.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"differences must have at least 2 pairs, got {n}.")
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile((1 + LEVEL) / 2, n - 1))
    means = sorted(sum(each) / n for each in _resamples(differences))
    # The interval excludes floor(tail * count) means at either end.
    num_excluded = math.floor(tail * len(means))
    return means[num_excluded], means[-1 - num_excluded]


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the null hypothesis that signs are arbitrary; exact up to 28 pairs.

    p is the share of the 2^n sign choices whose sum is at least as far from 0 as the observed sum, so
    p >= 2 / 2^n. The sums of each half are enumerated and combined by bisection. With more than 28 pairs,
    20,000 choices are sampled.
    """
    n = len(differences)
    # The tolerance makes sums equal that differ by rounding only.
    bound = abs(math.fsum(differences)) - 1e-12 * math.fsum(map(abs, differences))
    if bound <= 0:
        return 1.0
    if n > MAX_EXACT_PAIRS:
        rng = random.Random(0)
        sums = (math.fsum(rng.choice((1, -1)) * each for each in differences) for _ in range(MAX_RESAMPLES))
        # The observed signs count as one case, so p is never 0.
        return (sum(abs(each) >= bound for each in sums) + 1) / (MAX_RESAMPLES + 1)
    left, right = _signed_sums(differences[: n // 2]), sorted(_signed_sums(differences[n // 2 :]))
    num_extreme = sum(
        len(right) - bisect_left(right, bound - each) + bisect_right(right, -bound - each) for each in left
    )
    return math.ldexp(num_extreme, -n)


def min_p(num_pairs: int) -> float:
    """Return the smallest p-value of ``sign_flip_p``: all differences have the same sign."""
    return 2.0 ** (1 - num_pairs) if num_pairs <= MAX_EXACT_PAIRS else 1 / (MAX_RESAMPLES + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, which control the family-wise error rate.

    In ascending order, p_(i) (m - i + 1), made monotone and clipped at 1.
    """
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda each: ps[each])):
        highest = max(highest, min(ps[index] * (len(ps) - rank), 1.0))
        adjusted[index] = highest
    return adjusted


def _signed_sums(values: Sequence[float]) -> list[float]:
    """Return the sums of all 2^n sign choices."""
    sums = [0.0]
    for value in values:
        sums = [partial + signed for partial in sums for signed in (value, -value)]
    return sums


def _resamples(values: Sequence[float]) -> Iterator[Sequence[float]]:
    n = len(values)
    if n**n <= MAX_RESAMPLES:
        yield from itertools.product(values, repeat=n)
    else:
        rng = random.Random(0)
        for _ in range(MAX_RESAMPLES):
            yield rng.choices(values, k=n)
