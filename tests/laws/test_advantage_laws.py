"""Laws of every registered advantage estimator, with every table of it.

A class says what it is by two attributes: ``scope`` "batch" if a row depends on other groups (absent:
"group"), and ``is_group_relative`` False if rows of a group aren't compared (absent: True).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tensordict import TensorDict

import titanrl
from tests.laws.estimate_batches import (
    LAW,
    REWARDS,
    VALUES,
    Shape,
    label,
    permutations,
    scored_batch,
    shapes,
    tables,
    with_garbage,
    with_holes,
)
from titanrl.ops.masked import where0

TABLES = tables("advantage")
NOT_CENTRED = (
    "gigpo",
    "grpo_passk",
    "opo",
    "optimal_token_baseline",
    "pkpo",
    "rlsd",
    "soft_baseline",
)
"""Group-relative estimators whose advantages don't sum to zero over the rows of a group, by their formula."""


def build(table: dict[str, Any]) -> Any:
    return titanrl.build("advantage", table)


def is_group_relative(table: dict[str, Any]) -> bool:
    return getattr(type(build(table)), "is_group_relative", True)


def has_row_baseline(table: dict[str, Any]) -> bool:
    """Whether rows of a group share one baseline: one of tokens may leave rounding on equal rewards, and
    GiGPO also compares the rewards of turns."""
    return is_group_relative(table) and table["name"] not in ("optimal_token_baseline", "gigpo")


def is_group_local(table: dict[str, Any]) -> bool:
    return getattr(build(table), "scope", "group") == "group"


def is_centred(table: dict[str, Any]) -> bool:
    leaves_one_out = "leave_one_out" in (table.get("std"), table.get("baseline"))
    return is_group_relative(table) and table["name"] not in NOT_CENTRED and not leaves_one_out


def whitens(table: dict[str, Any]) -> bool:
    return getattr(build(table), "whiten", False)


def reads_rewards(table: dict[str, Any]) -> bool:
    return bool({"reward", "token_reward", ("rewards", REWARDS[0])} & set(build(table).in_keys))


def every_table(*conditions: Callable[[dict[str, Any]], bool]) -> pytest.MarkDecorator:
    chosen = [table for table in TABLES if all(condition(table) for condition in conditions)]
    return pytest.mark.parametrize("table", chosen, ids=label)


def run(table: dict[str, Any], batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantage and returns (zeros if there are none) of a new estimator, [2, N, L]."""
    advantage, returns = build(table)(batch)
    return advantage, torch.zeros_like(advantage) if returns is None else returns


def assert_same(
    got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], tolerance: float = 2e-5
) -> None:
    for left, right in zip(got, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@every_table()
@LAW
@given(shape=shapes)
def test_masked_positions_are_zero_and_never_read(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    expected = run(table, batch)
    for garbage in (float("nan"), 1e9, float("-inf")):
        got = run(table, with_garbage(batch, garbage))
        for value, clean in zip(got, expected, strict=True):
            assert value.dtype == torch.float32
            assert torch.equal(value, clean)
            assert not where0(~batch["loss_mask"], value).any()
            assert value.isfinite().all()


@every_table()
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_inserted_masked_tokens_change_nothing(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    for garbage in (float("nan"), 1e9):
        moved, places = with_holes(batch, garbage, seed)
        got = tuple(value.gather(1, places) for value in run(table, moved))
        assert_same(got, run(table, batch), 2e-6)


@every_table()
@LAW
@given(shape=shapes, seed=st.integers(0, 99))
def test_order_of_rows_does_not_matter(table: dict[str, Any], shape: Shape, seed: int) -> None:
    batch = scored_batch(shape)
    if table["name"] == "grpo_passk":  # The first row among ties is the better one, so there must be none.
        batch["reward"] = torch.randperm(len(batch)).float()
    order = permutations(batch, seed)
    assert_same(run(table, batch[order]), tuple(value[order] for value in run(table, batch)))


@every_table()
@LAW
@given(shape=shapes)
def test_group_ids_are_only_labels(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    renamed = batch.copy().update({"group_id": 1000 - 13 * batch["group_id"]})
    assert_same(run(table, renamed), run(table, batch))


@every_table(is_group_local)
@LAW
@given(shape=shapes)
def test_whole_groups_may_be_split_over_ranks(table: dict[str, Any], shape: Shape) -> None:
    batch = scored_batch(shape)
    first = batch["group_id"] == batch["group_id"][0]
    whole = run(table, batch)
    for part in (first, ~first):
        if part.any():
            assert_same(run(table, batch[part]), tuple(value[part] for value in whole))


@every_table(has_row_baseline)
@pytest.mark.parametrize("value", [0.1, 0.35, 0.7, 1 / 3])
def test_equal_rewards_give_exactly_zero(table: dict[str, Any], value: float) -> None:
    for size in range(1, 17):
        batch = scored_batch(Shape((size,), 3, 0, 0.7))
        batch["reward"] = torch.full((size,), value)
        batch["rewards"] = TensorDict(dict.fromkeys(REWARDS, batch["reward"]), batch_size=[size])
        last = torch.zeros_like(batch["loss_mask"])
        last[:, -1] = True
        batch["loss_mask"] = batch["loss_mask"] | last
        batch["token_reward"] = torch.where(last, batch["reward"][:, None], 0.0)
        advantage, _ = run(table, batch)
        assert torch.equal(advantage, torch.zeros_like(advantage))


@every_table(is_centred)
@LAW
@given(shape=shapes)
def test_group_advantages_sum_to_zero(table: dict[str, Any], shape: Shape) -> None:
    if whitens(table):
        table = {**table, "whiten": False}
    batch = scored_batch(shape)
    batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
    advantage, _ = run(table, batch)
    for group in batch["group_id"].unique():
        assert advantage[batch["group_id"] == group, 0].double().sum().abs() < 1e-5


@every_table(whitens)
@LAW
@given(shape=shapes)
@example(
    shape=Shape((2, 2), 1, 13, 0.3)
)  # two tokens of variance 1.4e-4, where eps lowers the result to 0.99986
def test_whitened_tokens_have_mean_zero_and_standard_deviation_one(
    table: dict[str, Any], shape: Shape
) -> None:
    """The standard deviation is 1 up to the eps in the denominator, sqrt(var + 1e-8)."""
    batch = scored_batch(shape)
    mask = batch["loss_mask"]
    tokens = run(table, batch)[0][mask].double()
    if tokens.any():
        variance = run({**table, "whiten": False}, batch)[0][mask].double().var()
        assert tokens.mean().abs() < 1e-6
        assert (tokens.std() - (variance / (variance + 1e-8)).sqrt()).abs() < 2e-6


@every_table(reads_rewards)
@LAW
@given(shape=shapes, row=st.integers(0, 99))
def test_unscored_row_is_excluded_from_statistics(table: dict[str, Any], shape: Shape, row: int) -> None:
    batch = scored_batch(shape)
    row %= len(batch)
    batch["loss_mask"][row, 0] = True
    others = torch.arange(len(batch)) != row
    expected = run(table, batch[others])
    batch["reward"][row] = batch["rewards", REWARDS[0]][row] = batch["token_reward"][row, 0] = float("nan")
    got = run(table, batch)
    assert_same(tuple(value[others] for value in got), expected)
    assert not got[0][row].any()
    assert got[1].isfinite().all()


def test_generated_batches_cover_the_hard_cases() -> None:
    """Their float32 means differ from them, so that a law over them can fail."""
    assert any(torch.full((8,), value).mean() != torch.tensor(value) for value in VALUES)
