"""Several answers to one prompt, against counting them out."""

from __future__ import annotations

from itertools import combinations

import pytest

from titanrl.eval.pass_at_k import best_of_k, k_values, maj_at_k, pass_at_k


def test_pass_at_k_is_unbiased_not_the_power():
    # 4 samples, 2 right: of the 6 pairs one holds no right answer.
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    # One of 4 right: 3 of the 6 pairs; 1 - (1 - 1/4)^2 would be .4375.
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(3, 0, 2) == 0.0
    assert pass_at_k(3, 2, 2) == 1.0


def test_numbers_of_answers_are_powers_of_two_and_all():
    assert [k_values(n) for n in (2, 3, 4, 6)] == [[2], [2, 3], [2, 4], [2, 4, 6]]


def test_best_of_k_is_the_mean_over_all_draws():
    values, scores = [0.3, 0.9, 0.1, 0.5], [1.0, 0.2, 0.6, 0.0]
    for k in range(1, 5):
        draws = [max(draw, key=lambda i: values[i]) for draw in combinations(range(4), k)]
        expected = sum(scores[i] for i in draws) / len(draws)
        assert best_of_k(values, scores, k) == pytest.approx(expected)
    # Pairs by hand: the best is 1 in three of six, 3 in two, 0 in one: (.2 * 3 + 0 * 2 + 1) / 6.
    assert best_of_k(values, scores, 2) == pytest.approx(1.6 / 6)


def test_equal_values_are_chosen_alike():
    assert best_of_k([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], 3) == pytest.approx(0.5)
    assert best_of_k([0.0, 1.0, 1.0], [0.0, 0.0, 1.0], 3) == pytest.approx(0.5)


def test_best_of_k_by_the_score_itself_is_pass_at_k():
    scores = [0.0, 1.0, 0.0, 1.0, 0.0]
    assert [best_of_k(scores, scores, k) for k in (1, 2, 3, 5)] == pytest.approx(
        [pass_at_k(5, 2, k) for k in (1, 2, 3, 5)]
    )


def test_majority_is_the_score_of_what_most_say():
    assert maj_at_k(["7", "8", "7", None, None, None], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]) == 1.0
    assert maj_at_k(["7", "8", "9", "8"], [1.0, 0.0, 0.0, 0.0]) == 0.0
    # A tie is broken by lot.
    assert maj_at_k(["7", "8", "7", "8", "9"], [1.0, 0.0, 1.0, 0.0, 0.0]) == 0.5
    assert maj_at_k([None, None], [0.0, 0.0]) == 0.0
