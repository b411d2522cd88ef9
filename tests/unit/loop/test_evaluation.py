"""Intervals of the held-out score."""

from __future__ import annotations

import math

import pytest

from titanrl.loop.evaluation import interval, pass_at_k


def test_binary_scores_get_wilsons_interval():
    # By hand: p = .5, n = 10, z = 1.959964: centre .5, half width z/(1+z^2/10) * sqrt(.025 + z^2/400).
    low, high = interval([1.0] * 5 + [0.0] * 5)
    assert low == pytest.approx(0.236593, abs=1e-5)
    assert high == pytest.approx(0.763407, abs=1e-5)


def test_all_wrong_still_has_a_width():
    low, high = interval([0.0] * 20)
    assert low == 0.0
    assert high == pytest.approx(3.841459 / (20 + 3.841459), abs=1e-5)


def test_graded_scores_get_standard_errors():
    low, high = interval([0.25, 0.75])
    assert (low, high) == pytest.approx((0.5 - 1.959964 * 0.25, 0.5 + 1.959964 * 0.25), abs=1e-6)


def test_one_graded_score_says_nothing():
    assert interval([0.5]) == (-math.inf, math.inf)


def test_pass_at_k_is_unbiased_not_the_power():
    # 4 samples, 2 right: of the 6 pairs one holds no right answer.
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    # One of 4 right: 3 of the 6 pairs; 1 - (1 - 1/4)^2 would be .4375.
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(3, 0, 2) == 0.0
    assert pass_at_k(3, 2, 2) == 1.0
