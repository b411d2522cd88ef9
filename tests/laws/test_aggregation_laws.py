"""Laws of every registered aggregation, with every table of it.

A class whose weights don't sum to 1 says by ``sums_to`` what they do sum to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import titanrl
from tests.laws.estimate_batches import (
    LAW,
    Shape,
    assert_round_trips,
    label,
    permutations,
    scored_batch,
    shapes,
    tables,
)

TABLES = tables("aggregation")
every_table = pytest.mark.parametrize("table", TABLES, ids=label)


TOTALS: dict[str, Callable[[float, float, float], float]] = {
    "1": lambda tokens, rows, length: 1.0,
    "M": lambda tokens, rows, length: tokens,
    "M / B": lambda tokens, rows, length: tokens / rows,
    "M / (B length)": lambda tokens, rows, length: tokens / (rows * length),
}
"""Allowed declared sums of weights, from M loss tokens, B non-empty rows and the table's length."""
KNOWN = ", ".join(map(repr, TOTALS))


def declared_total(table: dict[str, Any], mask: torch.Tensor) -> tuple[str, float]:
    """Returns what the class says that its weights sum to, in words and as a number."""
    sums_to = getattr(type(titanrl.build("aggregation", table)), "sums_to", "1")
    assert sums_to in TOTALS, (
        f"aggregation {table['name']!r}: sums_to must be one of {KNOWN}, got {sums_to!r}."
    )
    tokens, rows = float(mask.sum()), float(mask.any(-1).sum())
    return sums_to, TOTALS[sums_to](tokens, rows, float(table.get("length", 1))) if tokens else 0.0


def weights(table: dict[str, Any], mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    return titanrl.build("aggregation", table)(mask, group_id)


@every_table
@LAW
@given(shape=shapes)
def test_weights_sum_to_the_declared_total(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    mask = batch["loss_mask"]
    weight = weights(table, mask, batch["group_id"])
    assert weight.dtype == torch.float32
    assert weight.shape == mask.shape
    assert not weight[~mask].any()
    assert (weight[mask] > 0).all()
    sums_to, expected = declared_total(table, mask)
    assert float(weight.double().sum()) == pytest.approx(expected, rel=1e-6), (
        f"the weights of aggregation {table['name']!r} must sum to {sums_to}; correct them, or say in the "
        f"class what they sum to: sums_to: ClassVar[str] = one of {KNOWN}."
    )


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_order_and_names_of_groups_do_not_matter(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    order = permutations(batch, seed)
    mask, group_id = batch["loss_mask"], batch["group_id"]
    got = weights(table, mask[order], 5 - 3 * group_id[order])
    assert torch.equal(got, weights(table, mask, group_id)[order])


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_padding_and_empty_rows_change_nothing(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    mask, group_id = batch["loss_mask"], batch["group_id"]
    wide = torch.cat([torch.zeros_like(mask[:, :1]), mask, torch.zeros_like(mask)], 1)
    wide = torch.cat([wide, torch.zeros_like(wide[:1])])
    got = weights(table, wide, torch.cat([group_id, torch.tensor([10**6])]))
    assert torch.equal(got[:-1, 1 : 1 + mask.shape[1]], weights(table, mask, group_id))


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_any_split_of_the_step_sums_to_the_same(table: dict[str, Any], shape: Shape, seed: int) -> None:
    """Weights are data of the whole step: micro-batches and ranks only add, so nothing is divided twice."""
    batch = scored_batch(shape)
    loss = torch.randn(
        batch["loss_mask"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    weight = weights(table, batch["loss_mask"], batch["group_id"]).double()
    whole = float((weight * loss).sum())
    for parts in range(1, len(batch) + 1):
        split = sum(float((w * x).sum()) for w, x in zip(weight.chunk(parts), loss.chunk(parts), strict=True))
        assert split == pytest.approx(whole, abs=1e-9)


@every_table
@pytest.mark.parametrize("rows", [0, 3])
def test_all_masked_gives_zero_weights(table: dict[str, Any], rows: int) -> None:
    weight = weights(table, torch.zeros(rows, 4, dtype=torch.bool), torch.arange(rows))
    assert torch.equal(weight, torch.zeros(rows, 4))


@every_table
def test_weights_own_their_memory(table: dict[str, Any]) -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    weight = weights(table, mask, torch.tensor([0, 0, 1]))
    clean = weight.clone()
    weight[0, 0] += 1
    assert int((weight != clean).sum()) == 1
    assert mask.all()


@every_table
def test_pickle_and_toml_round_trip(table: dict[str, Any]) -> None:
    assert_round_trips("aggregation", table)
