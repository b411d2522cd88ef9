"""Laws of every registered correction, with every table of it."""

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
    with_garbage,
    with_holes,
)
from titanrl.protocols import CorrectionResult

TABLES = tables("correction")
every_table = pytest.mark.parametrize("table", TABLES, ids=label)


def build(table: dict[str, Any]) -> Any:
    return titanrl.build("correction", table)


def reads_sampler(table: dict[str, Any]) -> bool:
    return "sampler_logprob" in build(table).in_keys


of_mismatch = pytest.mark.parametrize("table", [table for table in TABLES if reads_sampler(table)], ids=label)


def assert_same(got: CorrectionResult, expected: CorrectionResult) -> None:
    assert torch.equal(got.keep, expected.keep)
    torch.testing.assert_close(got.weight, expected.weight, rtol=1e-6, atol=1e-7)
    assert got.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        torch.testing.assert_close(got.metrics[name], value, rtol=1e-5, atol=1e-6, equal_nan=True)


@every_table
@LAW
@given(shape=shapes)
def test_weight_is_zero_exactly_where_keep_is_false_and_metrics_report_it(
    table: dict[str, Any], shape: Shape
) -> None:
    batch = scored_batch(shape)
    mask = batch["loss_mask"]
    weight, keep, metrics = build(table)(batch)
    assert weight.dtype == torch.float32
    assert keep.dtype == torch.bool
    assert not keep[~mask].any()
    assert not weight[~keep].any()
    assert weight.isfinite().all()
    if mask.any():
        w, tokens = weight[mask].double(), int(mask.sum())
        assert float(metrics["dropped_fraction"]) == pytest.approx(1 - int(keep.sum()) / tokens)
        expected = float(w.sum() ** 2 / (tokens * w.square().sum())) if w.any() else 0.0
        assert float(metrics["effective_sample_size"]) == pytest.approx(expected)
        assert 0 <= float(metrics["effective_sample_size"]) <= 1 + 1e-9


@every_table
@LAW
@given(shape=shapes)
def test_masked_positions_are_not_read(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    for garbage in (float("nan"), float("inf"), 1e9):
        assert_same(build(table)(with_garbage(batch, garbage)), build(table)(batch))


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_inserted_masked_tokens_change_nothing(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    moved, places = with_holes(batch, float("nan"), seed)
    got = build(table)(moved)
    back = got._replace(weight=got.weight.gather(1, places), keep=got.keep.gather(1, places))
    assert_same(back, build(table)(batch))


@every_table
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_order_of_rows_does_not_matter(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    order = permutations(batch, seed)
    expected = build(table)(batch)
    assert_same(
        build(table)(batch[order]),
        expected._replace(weight=expected.weight[order], keep=expected.keep[order]),
    )


@of_mismatch
@LAW
@given(shape=shapes)
def test_equal_logprobs_give_weight_one(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    batch["sampler_logprob"] = batch["old_logprob"].clone()
    weight, keep, metrics = build(table)(batch)
    assert torch.equal(keep, batch["loss_mask"])
    assert torch.equal(weight, batch["loss_mask"].float())
    if keep.any():
        assert float(metrics["effective_sample_size"]) == pytest.approx(1.0)
        assert float(metrics["dropped_fraction"]) == 0.0
        assert float(metrics["ratio_mean"]) == float(metrics["ratio_max"]) == 1.0
        assert float(metrics["mismatch_kl"]) == 0.0


@of_mismatch
@LAW
@given(shape=shapes, place=st.integers(0, 999), bad=st.sampled_from([float("nan"), float("-inf")]))
def test_token_with_a_non_finite_logprob_is_dropped(
    table: dict[str, Any], shape: Shape, place: int, bad: float
) -> None:
    batch = scored_batch(shape)
    row, column = divmod(place % batch["loss_mask"].numel(), shape.length)
    batch["loss_mask"][row, column] = True
    broken = batch.clone()
    broken["sampler_logprob"][row, column] = bad
    weight, keep, _ = build(table)(broken)
    assert not keep[row, column]
    assert weight[row, column] == 0
    assert weight.isfinite().all()

    batch["loss_mask"][row, column] = False
    if table["name"] != "off_policy_mask":  # Its mean advantage is over all loss tokens.
        expected = build(table)(batch)
        assert torch.equal(keep, expected.keep)
        torch.testing.assert_close(weight, expected.weight, rtol=1e-6, atol=1e-7)


@every_table
def test_extreme_ratios_stay_finite(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((2, 2), 3, 0, 1.0))
    batch["old_logprob"][:, 0] = -1e-4
    batch["sampler_logprob"][:, 0] = -3e4
    weight, _, metrics = build(table)(batch)
    assert weight.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


@every_table
@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_train_on_gives_zero(table: dict[str, Any], rows: int) -> None:
    batch = scored_batch(Shape((2,), 3, 0, 0.8))[:rows]
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    weight, keep, _ = build(table)(batch)
    assert weight.shape == keep.shape == (rows, 3)
    assert not weight.any()
    assert not keep.any()


@every_table
def test_reads_only_its_in_keys_and_writes_nothing(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((3, 2), 4, 1, 0.8))
    before: TensorDict = batch.clone()
    component = build(table)
    weight, keep, _ = component(only(batch, ("loss_mask", "group_id", *component.in_keys)).lock_())
    for value in (weight, keep):
        clean = value.clone()
        value[0, 0] = ~value[0, 0] if value.dtype == torch.bool else value[0, 0] + 1
        assert int((value != clean).sum()) == 1
    assert (batch == before).all()


@every_table
def test_pickle_and_toml_round_trip(table: dict[str, Any]) -> None:
    assert_round_trips("correction", table)
