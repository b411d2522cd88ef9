"""Intervals, tests and corrections against closed forms, printed tables and manual counts."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean, stdev

import pytest

from titanrl.ablation.statistics import (
    bootstrap_interval,
    holm,
    mean_interval,
    min_p,
    sign_flip_p,
)
from titanrl.eval.student_t import t_cdf, t_quantile


@pytest.mark.parametrize("t", [-3.0, -0.4, 0.0, 1.7, 20.0])
def test_t_distribution_of_one_and_two_degrees_is_its_closed_form(t: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-15)  # Cauchy
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-15)


@pytest.mark.parametrize("df", [3, 4, 9, 30])
def test_t_distribution_is_the_integral_of_its_density(df: int) -> None:
    scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    width = 1.9 / 4000
    middles = ((index + 0.5) * width for index in range(4000))
    area = sum(scale * (1 + x * x / df) ** (-(df + 1) / 2) * width for x in middles)
    assert t_cdf(1.9, df) == pytest.approx(0.5 + area, abs=1e-8)
    assert t_cdf(-1.9, df) == pytest.approx(0.5 - area, abs=1e-8)


@pytest.mark.parametrize(
    ("p", "df", "printed"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 9, 2.262), (0.95, 4, 2.132), (0.995, 30, 2.750)],
)
def test_t_quantiles_are_those_of_printed_tables(p: float, df: int, printed: float) -> None:
    assert t_quantile(p, df) == pytest.approx(printed, abs=5e-4)
    assert t_quantile(1 - p, df) == pytest.approx(-printed, abs=5e-4)


def test_mean_interval_of_five_seeds() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    mean, low, high = mean_interval(values)
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert (mean, low, high) == pytest.approx((3.0, 3 - half, 3 + half), abs=1e-6)
    assert mean_interval([7.0]) == (7.0, -math.inf, math.inf)


def test_bootstrap_of_two_pairs_takes_all_four_resamples() -> None:
    # Means 1, 2, 2, 3 of four resamples; the tail, Phi(-sqrt(2) 12.7), leaves none out.
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)


def test_bootstrap_of_five_pairs_leaves_out_two_means_of_each_end() -> None:
    # Phi(-sqrt(5/4) 2.776) = .000956, of 3125 resamples 2.99, so two: the least mean is 0, once, then comes
    # 1/5, five times.
    assert bootstrap_interval([0.0, 1.0, 10.0, 100.0, 1000.0])[0] == pytest.approx(1 / 5)


def test_bootstrap_coverage_is_near_its_nominal_level() -> None:
    rng = random.Random(1)
    trials = 300
    covered = 0
    for _ in range(trials):
        low, high = bootstrap_interval([rng.gauss(0, 1) for _ in range(4)])
        covered += low <= 0 <= high
    # The plain percentile interval of four covers .80; four pairs cannot quite reach .95, as all means lie
    # between the least and the greatest: 1 - 2 / 2^4 = .875.
    assert 0.83 <= covered / trials <= 0.92


@pytest.mark.slow
def test_bootstrap_of_many_pairs_is_near_the_t_interval_and_repeats() -> None:
    rng = random.Random(2)
    values = [rng.gauss(3, 1) for _ in range(40)]
    half = t_quantile(0.975, 39) * stdev(values) / math.sqrt(40)
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert low == pytest.approx(fmean(values) - half, abs=0.05)
    assert high == pytest.approx(fmean(values) + half, abs=0.05)


def test_bootstrap_needs_pairs() -> None:
    with pytest.raises(ValueError, match="at least 2 pairs, got 1"):
        bootstrap_interval([1.0])


def test_five_seeds_of_one_sign_give_the_smallest_possible_p() -> None:
    assert sign_flip_p([0.1, 0.2, 0.3, 0.4, 0.5]) == 2 / 32 == min_p(5)
    assert sign_flip_p([-0.1, -0.2, -0.3, -0.4, -0.5]) == 2 / 32


def test_sign_flips_by_hand() -> None:
    # Sums of +-1 +-2 +-4: 7, 5, 3, 1 and their negatives; at least 5: four of eight.
    assert sign_flip_p([-1.0, 2.0, 4.0]) == 4 / 8
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0
    # The other choices of equal size count as equal, whatever the rounding.
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_sign_flips_are_those_of_all_signs(count: int) -> None:
    rng = random.Random(count)
    values = [round(rng.gauss(0.3, 1), 1) for _ in range(count)]  # Rounded, so that sums are often equal.
    signs = itertools.product((1, -1), repeat=count)
    sums = [abs(sum(s * v for s, v in zip(each, values, strict=True))) for each in signs]
    as_far = sum(each >= abs(sum(values)) - 1e-9 for each in sums)
    assert sign_flip_p(values) == as_far / 2**count


def test_sign_flips_of_twenty_pairs_are_exact() -> None:
    # 18 of one sign and 2 of the other: as far are sums of at most 2 of the lesser sign, either way.
    assert sign_flip_p([1.0] * 18 + [-1.0] * 2) == 2 * (1 + 20 + 190) / 2**20
    assert sign_flip_p([0.1] * 20) == min_p(20) == 2 / 2**20


@pytest.mark.slow
def test_sampled_sign_flips_never_give_p_zero() -> None:
    assert sign_flip_p([1.0] * 30) == pytest.approx(min_p(30))
    assert 0.3 < sign_flip_p([1.0, -1.0] * 10 + [1.0]) <= 1


def test_holm_by_hand() -> None:
    # Rising .01 * 3, .03 * 2 = .06, .04 * 1 -> at least .06.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
