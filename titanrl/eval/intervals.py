"""95% intervals of the mean of bounded scores and of paired differences, which cover also near the bounds.

``python -m tools.interval_coverage`` simulates how often they contain the true value.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from titanrl.eval.student_t import t_quantile

__all__ = ["difference_interval", "mean_interval"]

Z = 2.0
ALPHA = 0.05
NUM_ORDERS = 8
"""Orders of the values over which the capital of the bets is averaged."""
MAX_BET = 0.75
"""Largest share of the capital that a bet may risk."""


def mean_interval(values: Sequence[float], prompts: Sequence[Hashable] | None = None) -> tuple[float, float]:
    """Returns the 95% interval of the mean of ``values``, one per prompt.

    - Scores of 0 and 1: Agresti and Coull's interval, whose coverage is at least .93 from 20 prompts on.
    - Other values in [0, 1], such as shaped scores and means over several responses: the shorter of that
      interval, because no other distribution on [0, 1] with this mean varies more, and of the betting
      interval of Waudby-Smith and Ramdas, which is valid for all of them and short where they vary little.
    - Values outside [0, 1]: Student's t interval with cluster-robust errors, because no bound is known.

    Repeated prompts add no evidence: if the i-th unique prompt occurs m_i times among n, the number of
    independent prompts is Kish's ``n^2 / sum_i m_i^2``.

    Args:
        values: one per prompt.
        prompts: identity of each prompt; None: all are unique.

    Sources: Agresti and Coull, The American Statistician 52 (1998), 119-126; betting, arXiv 2010.09686;
    effective sample size, Kish 1965; clusters, arXiv 2411.00640.
    """
    if set(values) <= {0.0, 1.0}:
        return _proportion(sum(values) / len(values), _effective_size(values, prompts))
    if min(values) >= 0 and max(values) <= 1:
        return _bounded(values, prompts)
    return _student(values, prompts)


def difference_interval(
    differences: Sequence[float], prompts: Sequence[Hashable] | None = None
) -> tuple[float, float]:
    """Returns the 95% interval of the mean of paired differences, one per prompt.

    Differences of binary scores, -1, 0 and 1, get Agresti and Min's adjusted Wald interval; others in
    [-1, 1] the interval that other scores have in ``mean_interval``. All have a positive width where all
    pairs agree. Repeated prompts count as in ``mean_interval``.

    Args:
        differences: one per prompt.
        prompts: identity of each prompt; None: all are unique.

    Sources: Agresti and Min, Statistics in Medicine 24 (2005), 729-740; betting, arXiv 2010.09686.
    """
    if set(differences) <= {-1.0, 0.0, 1.0}:
        n, size = len(differences), _effective_size(differences, prompts)
        better, worse = (sum(each == sign for each in differences) * size / n for sign in (1.0, -1.0))
        return _paired_proportions(better, worse, size)
    if min(differences) >= -1 and max(differences) <= 1:
        low, high = _bounded([(each + 1) / 2 for each in differences], prompts)
        return 2 * low - 1, 2 * high - 1
    return _student(differences, prompts)


def _bounded(values: Sequence[float], prompts: Sequence[Hashable] | None) -> tuple[float, float]:
    """Returns the shorter of two intervals that are valid for values in [0, 1]."""
    binary = _proportion(math.fsum(values) / len(values), _effective_size(values, prompts))
    betting = _betting(*_clusters(values, prompts))
    return min(binary, betting, key=lambda bounds: bounds[1] - bounds[0])


def _effective_size(values: Sequence[float], prompts: Sequence[Hashable] | None) -> float:
    """Returns Kish's effective number of prompts."""
    counts = Counter(range(len(values)) if prompts is None else prompts).values()
    return len(values) ** 2 / sum(count * count for count in counts)


def _clusters(values: Sequence[float], prompts: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean of each unique prompt's values, and the weight of its evidence, at most 1.

    The weights are proportional to the number of values and sum to the effective number of prompts, unless
    one prompt is so frequent that its weight is cut.
    """
    groups: dict[Hashable, list[float]] = {}
    for prompt, value in zip(range(len(values)) if prompts is None else prompts, values, strict=True):
        groups.setdefault(prompt, []).append(value)
    counts = np.array([len(group) for group in groups.values()], dtype=float)
    means = np.array([math.fsum(group) / len(group) for group in groups.values()])
    return means, np.minimum(counts * counts.sum() / (counts * counts).sum(), 1.0)


def _proportion(mean: float, size: float) -> tuple[float, float]:
    """Returns the Wald interval after two added successes and two added failures, at z = 2."""
    total = size + 4
    center = (mean * size + 2) / total
    half_width = Z * math.sqrt(center * (1 - center) / total)
    return max(center - half_width, 0.0), min(center + half_width, 1.0)


def _paired_proportions(better: float, worse: float, size: float) -> tuple[float, float]:
    """Returns the Wald interval of the difference after one added pair of each of the four kinds, at z = 2.

    Args:
        better: number of pairs with difference 1.
        worse: number of pairs with difference -1.
        size: number of all pairs.
    """
    total, discordant = size + 4, better + worse + 2
    center = (better - worse) / total
    half_width = Z * math.sqrt(discordant - total * center**2) / total
    return max(center - half_width, -1.0), min(center + half_width, 1.0)


def _betting(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Returns the means in [0, 1] against which bets on the values do not win 2 / 0.05 times their stake.

    Each bet depends on the earlier values only, so the capital is a martingale if the mean is the true one.
    It is averaged over several orders of the values, so that their order matters little. A weight below 1
    raises the growth of a bet to that power.

    Args:
        values: [c] in [0, 1].
        weights: [c] in (0, 1].
    """
    rng, count = random.Random(0), len(values)
    orders = np.array([rng.sample(range(count), count) for _ in range(NUM_ORDERS)])
    x, w = values[orders], weights[orders]
    total = np.cumsum(w, axis=1)
    mean = (0.5 + np.cumsum(w * x, axis=1)) / (1 + total)
    variance = (0.25 + np.cumsum(w * (x - mean) ** 2, axis=1)) / (1 + total)
    before = np.concatenate([np.full((NUM_ORDERS, 1), 0.25), variance[:, :-1]], axis=1)
    bet = np.sqrt(2 * math.log(2 / ALPHA) / (before * total[:, -1:]))

    def log_capital(candidate: float, sign: int) -> float:
        bound = MAX_BET / max(candidate if sign > 0 else 1 - candidate, 1e-12)
        growth = np.log1p(sign * np.minimum(bet, bound) * (x - candidate))
        logs = (w * growth).sum(axis=1)
        return float(np.logaddexp.reduce(logs)) - math.log(NUM_ORDERS)

    threshold, estimate = math.log(2 / ALPHA), float(np.average(values, weights=weights))
    low = _bisect(lambda candidate: log_capital(candidate, 1) > threshold, 0.0, estimate)
    high = _bisect(lambda candidate: log_capital(candidate, -1) < threshold, estimate, 1.0)
    return low, high


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the point in [low, high] up to which ``is_below`` holds."""
    if not is_below(low):
        return low
    if is_below(high):
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _student(values: Sequence[float], prompts: Sequence[Hashable] | None) -> tuple[float, float]:
    """Returns the mean +- t cluster-robust standard errors; infinite bounds for a single prompt."""
    n, mean = len(values), math.fsum(values) / len(values)
    sums: dict[Hashable, float] = {}
    for prompt, value in zip(range(n) if prompts is None else prompts, values, strict=True):
        sums[prompt] = sums.get(prompt, 0.0) + value - mean
    count = len(sums)
    if count == 1:
        return -math.inf, math.inf
    std_error = math.sqrt(count / (count - 1) * math.fsum(each * each for each in sums.values())) / n
    half_width = t_quantile(1 - ALPHA / 2, count - 1) * std_error
    return mean - half_width, mean + half_width
