"""Bins hold every item once within the capacity, in few bins; balanced bins are nearly even."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrl.engine.bins import balance, pack


def lognormal(seed: int, count: int = 4096, longest: int = 4096) -> list[int]:
    """Returns lengths as of responses."""
    rng = random.Random(seed)
    return [max(1, min(longest, int(rng.lognormvariate(5.5, 0.8)))) for _ in range(count)]


def first_fit_decreasing(sizes: list[int], capacity: int) -> int:
    """Returns the number of bins."""
    room: list[int] = []
    for size in sorted(sizes, reverse=True):
        for index, left in enumerate(room):
            if left >= size:
                room[index] -= size
                break
        else:
            room.append(capacity - size)
    return len(room)


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 25))
def test_pack_holds_every_item_once_and_no_bin_too_many(sizes: list[int], capacity: int) -> None:
    bins = pack(sizes, capacity)
    assert sorted(item for chosen in bins for item in chosen) == list(range(len(sizes)))
    for chosen in bins:
        assert chosen
        assert sum(sizes[item] for item in chosen) <= capacity or len(chosen) == 1
    assert len(bins) <= max(1, len(sizes))


@pytest.mark.parametrize("seed", range(4))
def test_pack_needs_no_more_bins_than_first_fit_and_wastes_little(seed: int) -> None:
    sizes = lognormal(seed)
    bins = pack(sizes, 4096)
    assert len(bins) <= first_fit_decreasing(sizes, 4096)
    assert 1 - sum(sizes) / (len(bins) * 4096) <= 0.008


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 9))
def test_balance_holds_every_item_once(sizes: list[int], count: int) -> None:
    bins = balance(sizes, count)
    assert len(bins) == count
    assert sorted(item for chosen in bins for item in chosen) == list(range(len(sizes)))
    assert bins == balance(sizes, count)


@pytest.mark.parametrize("seed", range(4))
def test_balance_is_even_to_a_thousandth_at_64_ranks(seed: int) -> None:
    sizes = lognormal(seed)
    loads = [sum(sizes[item] for item in chosen) for chosen in balance(sizes, 64)]
    assert max(loads) / (sum(loads) / 64) - 1 <= 0.001


def test_balance_exchanges_where_largest_first_is_not_best() -> None:
    bins = balance([5, 5, 4, 4, 3, 3], 2)
    assert sorted(sum([5, 5, 4, 4, 3, 3][item] for item in chosen) for chosen in bins) == [12, 12]
