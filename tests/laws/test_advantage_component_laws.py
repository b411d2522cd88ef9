"""Laws of every registered advantage estimator as a component: what it reads, writes, holds and survives."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import titanrl
from tests.laws.estimate_batches import Shape, assert_round_trips, label, only, scored_batch, tables

TABLES = tables("advantage")
every_table = pytest.mark.parametrize("table", TABLES, ids=label)


def build(table: dict[str, Any]) -> Any:
    return titanrl.build("advantage", table)


@every_table
def test_outputs_own_their_memory(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((3, 2), 4, 5, 1.0))
    before = batch.clone()
    advantage, returns = build(table)(batch)
    for value in (advantage, returns):
        if value is not None:
            clean = value.clone()
            value[0, 0] += 1
            changed = value != clean
            assert int(changed.sum()) == 1
    if returns is not None:
        assert advantage.data_ptr() != returns.data_ptr()
    assert (batch == before).all()


@every_table
def test_batch_is_not_modified(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((3, 1, 2), 5, 3, 0.6))
    before, keys = batch.clone(), set(batch.keys(True))
    build(table)(batch.lock_())
    assert set(batch.keys(True)) == keys
    assert (batch == before).all()


@every_table
def test_reads_only_its_in_keys(table: dict[str, Any]) -> None:
    batch = scored_batch(Shape((3, 2), 4, 1, 0.8))
    component = build(table)
    needed = ("loss_mask", "group_id", *component.in_keys)
    optional = getattr(component, "optional_keys", ())
    expected = build(table)(only(batch, (*needed, *optional)))
    got = build(table)(batch)
    assert torch.equal(got.advantage, expected.advantage)
    assert got.returns is expected.returns or torch.equal(got.returns, expected.returns)
    build(table)(only(batch, needed))


@every_table
@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_train_on_gives_zero(table: dict[str, Any], rows: int) -> None:
    batch = scored_batch(Shape((2,), 3, 0, 0.8))[:rows]
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    advantage, returns = build(table)(batch)
    assert advantage.shape == (rows, 3)
    assert not advantage.any()
    assert returns is None or not returns.any()


@every_table
def test_pickle_and_toml_round_trip(table: dict[str, Any]) -> None:
    assert_round_trips("advantage", table)


def test_stateful_estimators_resume_exactly() -> None:
    """What ema_baseline declares: each call moves a state, which a checkpoint carries on."""
    stateful = [table for table in TABLES if hasattr(build(table), "state_dict")]
    assert stateful
    for table in stateful:
        batches = [scored_batch(Shape((3, 2), 3, seed, 0.9)) for seed in range(4)]
        whole = build(table)
        expected = [whole(batch).advantage for batch in batches]
        resumed = build(table)
        for batch, advantage in zip(batches, expected, strict=True):
            assert torch.equal(resumed(batch).advantage, advantage)
            state = pickle.loads(pickle.dumps(resumed.state_dict()))
            resumed = build(table)
            resumed.load_state_dict(state)
