"""Laws of every registered controller, and the closed forms of the built-in ones."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import titanrl
from tests.laws.estimate_batches import LAW, assert_round_trips, label, tables

TABLES = tables("kl_controller")
every_table = pytest.mark.parametrize("table", TABLES, ids=label)
kls = st.lists(st.floats(0, 3), min_size=1, max_size=12)


def build(table: dict[str, Any]) -> Any:
    return titanrl.build("kl_controller", table)


def trajectory(table: dict[str, Any], kl: list[float], num_sequences: int = 64) -> list[float]:
    """Returns the coefficient before the first update and after each."""
    controller = build(table)
    found = [controller.coefficient]
    for step, value in enumerate(kl):
        controller.update(value, num_sequences, step)
        found.append(controller.coefficient)
    return found


@every_table
@LAW
@given(kl=kls)
def test_coefficients_are_finite_and_not_negative(table: dict[str, Any], kl: list[float]) -> None:
    assert all(math.isfinite(value) and value >= 0 for value in trajectory(table, kl))


@every_table
@LAW
@given(kl=kls, cut=st.integers(0, 12))
def test_resuming_half_way_continues_exactly(table: dict[str, Any], kl: list[float], cut: int) -> None:
    whole = trajectory(table, kl)
    controller = build(table)
    for step, value in enumerate(kl):
        if step == min(cut, len(kl) - 1):
            state = json.loads(json.dumps(controller.state_dict()))
            controller = build(table)
            controller.load_state_dict(state)
            assert controller.coefficient == whole[step]
        controller.update(value, 64, step)
    assert controller.coefficient == whole[-1]


@every_table
def test_two_controllers_share_nothing(table: dict[str, Any]) -> None:
    left, right = build(table), build(table)
    start = right.coefficient
    for step in range(5):
        left.update(0.01, 64, step)
    assert right.coefficient == start


@every_table
def test_pickle_and_toml_round_trip(table: dict[str, Any]) -> None:
    assert_round_trips("kl_controller", table)
    controller = build(table)
    controller.update(0.3, 64, 0)
    assert pickle.loads(pickle.dumps(controller)) == controller


@LAW
@given(start=st.floats(0, 1), end=st.floats(0, 1), steps=st.integers(1, 20), step=st.integers(0, 40))
def test_schedules_follow_their_closed_form_for_any_call_order(
    start: float, end: float, steps: int, step: int
) -> None:
    """They depend on the step alone: a skipped or repeated update changes nothing."""
    share = min((step + 1) / steps, 1)
    expected = {
        "linear": (1 - share) * start + share * end,
        "cosine": start + (end - start) * math.sin(math.pi * share / 2) ** 2,
    }
    for name, value in expected.items():
        controller = build({"name": name, "start": start, "end": end, "steps": steps})
        assert controller.coefficient == pytest.approx(start, abs=1e-12)
        controller.update(9.0, 1, step)
        controller.update(9.0, 1, step)
        assert controller.coefficient == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("kl", "error"), [(0.3, 0.2), (0.11, 0.1), (0.1, 0.0), (0.05, -0.2)])
@pytest.mark.parametrize("num_sequences", [1, 64, 128])
def test_adaptive_is_a_product_of_clipped_errors(kl: float, error: float, num_sequences: int) -> None:
    """KL above the target raises the coefficient; twice the sequences, twice the relative change."""
    table = {"name": "adaptive", "coefficient": 0.01, "target": 0.1, "horizon": 1000}
    found = trajectory(table, [kl] * 7, num_sequences)
    for step, value in enumerate(found):
        assert value == pytest.approx(0.01 * (1 + error * num_sequences / 1000) ** step, rel=1e-9)


def test_adaptive_refuses_to_turn_its_sign() -> None:
    controller = build({"name": "adaptive", "horizon": 10})
    controller.update(9.0, 60, 0)
    with pytest.raises(ValueError, match=r"horizon must be > .* = 12, got 10"):
        controller.update(0.0, 60, 1)


def test_adaptive_and_entropy_target_refuse_a_nan() -> None:
    for name in ("adaptive", "entropy_target"):
        with pytest.raises(ValueError, match="nan in step 3"):
            build({"name": name}).update(math.nan, 8, 3)


def test_entropy_target_stays_in_its_bounds_and_rises_below_the_target() -> None:
    table = {"name": "entropy_target", "target": 0.5, "step_size": 0.25, "minimum": 0.25, "maximum": 0.75}
    low, high = [0.1] * 5, [0.9] * 5
    assert trajectory({**table, "coefficient": 0.25}, low)[1:] == [0.5, 0.75, 0.75, 0.75, 0.75]
    assert trajectory({**table, "coefficient": 0.75}, high)[1:] == [0.5, 0.25, 0.25, 0.25, 0.25]
    assert trajectory({**table, "coefficient": 0.25}, [0.5])[1] == 0.5, "at the target it rises"
