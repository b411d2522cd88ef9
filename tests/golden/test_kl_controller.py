"""Every controller along a trajectory with known coefficients, whole and resumed half way."""

from __future__ import annotations

import json
from typing import Any

import pytest

import titanrl
from tests.golden import cases

CASES = cases.load("kl_controller")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_controller_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("resume_at", [None, "each step"])
@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_controller_golden(case: dict[str, Any], resume_at: str | None) -> None:
    controller = titanrl.build("kl_controller", cases.table(case))
    coefficients = [controller.coefficient]
    for kl, num_sequences, step in case["calls"]:
        controller.update(kl, num_sequences, step)
        coefficients.append(controller.coefficient)
        if resume_at:
            state = json.loads(json.dumps(controller.state_dict()))
            controller = titanrl.build("kl_controller", cases.table(case))
            controller.load_state_dict(state)
            assert controller.coefficient == coefficients[-1]

    for got, expected in zip(coefficients, case["expect"]["coefficients"], strict=True):
        assert abs(got - expected) <= case["tolerance"] * (1 + abs(expected))


def test_every_controller_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("kl_controller"))
