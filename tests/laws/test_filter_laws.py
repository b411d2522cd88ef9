"""Laws of every registered filter, with every table; a class that keeps rows says ``keeps_groups`` False."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import titanrl
from tests.laws.estimate_batches import (
    LAW,
    Shape,
    assert_round_trips,
    label,
    only,
    permutations,
    scored_batch,
    shapes,
    tables,
)

TABLES = tables("filter")
every_table = pytest.mark.parametrize("table", TABLES, ids=label)


def keep_of(table: dict[str, Any], batch: TensorDict) -> torch.Tensor:
    return titanrl.build("filter", table)(batch)


@every_table
@LAW
@given(shape=shapes)
def test_whole_groups_are_kept(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    keep = keep_of(table, batch)
    assert keep.dtype == torch.bool
    assert keep.shape == (len(batch),)
    if getattr(type(titanrl.build("filter", table)), "keeps_groups", True):
        for group in batch["group_id"].unique():
            assert len(keep[batch["group_id"] == group].unique()) == 1


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_order_names_and_other_groups_do_not_matter(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    # Rows of one group keep their order, since it decides ties, but groups interleave at random.
    order = permutations(batch, seed)
    for group in batch["group_id"].unique():
        places = batch["group_id"][order] == group
        order[places] = order[places].sort().values
    keep = keep_of(table, batch)
    moved = batch[order]
    moved["group_id"] = 3 - moved["group_id"]
    assert torch.equal(keep_of(table, moved), keep[order])
    first = batch["group_id"] == batch["group_id"][0]
    assert torch.equal(keep_of(table, batch[first]), keep[first])


@every_table
@LAW
@given(shape=shapes, row=st.integers(0, 99))
def test_an_unscored_row_is_dropped_and_not_counted(table: dict[str, Any], shape: Shape, row: int) -> None:
    batch = scored_batch(shape)
    row %= len(batch)
    others = torch.arange(len(batch)) != row
    expected = keep_of(table, batch[others])
    for key in ("reward", ("rewards", "accuracy"), ("rewards", "format")):
        batch[key][row] = float("nan")
    keep = keep_of(table, batch)
    assert not keep[row]
    assert torch.equal(keep[others], expected)


@every_table
def test_an_empty_batch_is_kept_empty(table: dict[str, Any]) -> None:
    assert keep_of(table, scored_batch(Shape((2,), 3, 0, 1.0))[:0]).shape == (0,)


@every_table
def test_reads_only_its_in_keys_and_writes_nothing(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((3, 2), 4, 1, 0.8))
    before = batch.clone()
    component = titanrl.build("filter", table)
    component(only(batch, ("loss_mask", "group_id", *component.in_keys)).lock_())
    assert (batch == before).all()


@every_table
def test_pickle_and_toml_round_trip(table: dict[str, Any]) -> None:
    assert_round_trips("filter", table)
