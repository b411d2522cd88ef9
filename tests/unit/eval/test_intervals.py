"""Intervals of held-out scores: values by hand, bounds, clusters, and simulated coverage."""

from __future__ import annotations

import math
import random

import pytest

from titanrl.eval.intervals import difference_interval, mean_interval
from tools.interval_coverage import SCORES, coverage, difference_coverage


def test_interval_of_binary_scores() -> None:
    # By hand: 5 of 10 become 7 of 14, and 0 of 20 become 2 of 24.
    half = 2 * math.sqrt(0.25 / 14)
    assert mean_interval([1.0] * 5 + [0.0] * 5) == pytest.approx((0.5 - half, 0.5 + half))
    low, high = mean_interval([0.0] * 20)
    assert low == 0.0
    assert high == pytest.approx(1 / 12 + 2 * math.sqrt(1 / 12 * 11 / 12 / 24))


def test_exact_coverage_of_binary_scores_is_93_percent() -> None:
    """For 20 to 500 prompts, and true scores from .01 to .99."""
    lowest = 1.0
    for count in (20, 21, 25, 30, 50, 68, 100, 200, 500):
        bounds = [mean_interval([1.0] * hits + [0.0] * (count - hits)) for hits in range(count + 1)]
        for step in range(1, 100):
            mean = step / 100
            shares = (
                math.exp(
                    _log_choose(count, hits) + hits * math.log(mean) + (count - hits) * math.log1p(-mean)
                )
                for hits, (low, high) in enumerate(bounds)
                if low <= mean <= high
            )
            lowest = min(lowest, sum(shares))
    assert lowest >= 0.93


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(
    ("mean", "count"), [(0.01, 20), (0.01, 68), (0.05, 68), (0.5, 20), (0.95, 68), (0.99, 200)]
)
def test_simulated_coverage_is_93_percent(name: str, mean: float, count: int) -> None:
    assert coverage(SCORES[name], mean, count, trials=300) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("difference", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("count", [20, 68, 200])
def test_simulated_coverage_of_differences_is_93_percent(difference: float, count: int) -> None:
    assert difference_coverage(difference, count, trials=500) >= 0.93


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_equal_scores_give_a_width_within_the_bounds(value: float) -> None:
    low, high = mean_interval([value] * 68)
    assert 0 <= low <= value <= high <= 1
    assert 0.02 < high - low < 0.2
    low, high = difference_interval([value] * 68)
    assert -1 <= low <= value <= high <= 1
    assert 0.02 < high - low < 0.3


def test_shaped_scores_without_a_success_do_not_exclude_successes() -> None:
    """A run whose held-out responses earn .01 each for their form."""
    low, high = mean_interval([0.01] * 68)
    assert low < 0.01
    assert 0.03 < high < 0.1


def test_repeated_prompts_are_no_further_evidence() -> None:
    assert mean_interval([1.0, 1.0, 0.0, 0.0], "aabb") == pytest.approx(mean_interval([1.0, 0.0]))
    assert mean_interval([0.2, 0.2, 0.7, 0.7], "aabb") == pytest.approx(mean_interval([0.2, 0.7]))
    unique = difference_interval([0.2, -0.1] * 10)
    assert difference_interval([0.2, 0.2, -0.1, -0.1] * 10, [i // 2 for i in range(40)]) == pytest.approx(
        unique
    )
    # By hand: one prompt three times, another once: 16 / (9 + 1) = 1.6 prompts; 1.2 of 1.6 become 3.2 of 5.6.
    center = 3.2 / 5.6
    half = 2 * math.sqrt(center * (1 - center) / 5.6)
    assert mean_interval([1.0, 1.0, 1.0, 0.0], "aaab") == pytest.approx((center - half, center + half))


def test_order_of_the_prompts_matters_little() -> None:
    rng = random.Random(0)
    values = [rng.random() ** 3 for _ in range(68)]
    bounds = [mean_interval(rng.sample(values, len(values))) for _ in range(20)]
    for each in zip(*bounds, strict=True):
        assert max(each) - min(each) < 0.02


def test_values_beyond_the_bounds_get_t_intervals() -> None:
    # By hand: lengths 10 and 30: mean 20, standard error 10, t = 12.706 for one degree of freedom.
    assert mean_interval([10.0, 30.0]) == pytest.approx((20 - 127.062, 20 + 127.062), abs=1e-2)
    assert mean_interval([5.0, 5.0], "aa") == (-math.inf, math.inf)
