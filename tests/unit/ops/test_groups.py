"""Group statistics against Python's statistics module, group by group."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrl.ops.groups import GroupScores, group_index, segment_sum

rows_strategy = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 0.1, 0.35, -2.0, 1 / 3, 100.0, math.nan])),
    min_size=1,
    max_size=20,
)


def others(values: list[float], position: int) -> list[float]:
    return values[:position] + values[position + 1 :]


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy, unbiased=st.booleans())
def test_statistics_are_computed_per_group(rows: list[tuple[int, float]], unbiased: bool) -> None:
    ids = torch.tensor([group for group, _ in rows])
    score = torch.tensor([value for _, value in rows], dtype=torch.float32)
    groups = GroupScores.of(score, ids)
    std, std_of_others, mean_of_others = (
        groups.std(unbiased),
        groups.std_of_others(unbiased),
        groups.mean_of_others(),
    )
    deviation = statistics.stdev if unbiased else statistics.pstdev
    for i, group in enumerate(ids.tolist()):
        if math.isnan(float(score[i])):
            assert not groups.comparable[i]
            continue
        members = [j for j in range(len(rows)) if ids[j] == group and not math.isnan(float(score[j]))]
        values = [float(score[j]) for j in members]
        rest = others(values, members.index(i))
        assert groups.count[i] == len(values)
        assert float(groups.mean()[i]) == pytest.approx(statistics.fmean(values), abs=1e-12)
        assert float(std[i]) == pytest.approx(deviation(values) if len(values) > 1 else 0.0, abs=1e-9)
        assert bool(groups.comparable[i]) == (max(values) > min(values))
        assert float(mean_of_others[i]) == pytest.approx(statistics.fmean(rest) if rest else 0.0, abs=1e-12)
        assert float(std_of_others[i]) == pytest.approx(deviation(rest) if len(rest) > 1 else 0.0, abs=1e-9)


def test_leave_one_out_std_is_stable_for_an_outlier() -> None:
    """The sum of squares without the outlier is lost in a difference of two numbers around 1e12."""
    score = torch.tensor([1e6, 1.0, 1.0001, 1.0003])
    got = GroupScores.of(score, torch.zeros(4, dtype=torch.int64)).std_of_others()
    expected = statistics.stdev(score[1:].double().tolist())
    assert float(got[0]) == pytest.approx(expected, rel=1e-9)


def test_leave_one_out_std_of_equal_values_is_exactly_zero() -> None:
    score = torch.tensor([0.7, 0.35, 0.35, 0.35, 0.1, 0.9])
    got = GroupScores.of(score, torch.tensor([0, 0, 0, 0, 1, 1])).std_of_others()
    assert float(got[0]) == 0.0
    assert got[1:4].gt(0).all(), "the others of these rows hold the odd one"
    assert got[4:].tolist() == [0.0, 0.0], "one other row has no spread"


def test_first_of_takes_the_lowest_row_among_ties_and_no_unscored_row() -> None:
    score = torch.tensor([0.5, math.nan, 0.5, 0.2, math.nan])
    groups = GroupScores.of(score, torch.tensor([0, 0, 0, 1, 2]))
    assert groups.first_of(groups.score).tolist() == [True, False, False, True, False]


def test_group_index_counts_groups_of_any_ids_in_any_order() -> None:
    index, num = group_index(torch.tensor([70, -1, 70, 9]))
    assert num == 3
    assert index[0] == index[2]
    assert sorted(index[[0, 1, 3]].tolist()) == [0, 1, 2]


def test_segment_sum_adds_rows_of_any_shape() -> None:
    x = torch.arange(6.0).view(3, 2)
    assert segment_sum(x, torch.tensor([1, 0, 1]), 3).tolist() == [[2.0, 3.0], [4.0, 6.0], [0.0, 0.0]]
