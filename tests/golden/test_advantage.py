"""Every advantage estimator against values of a float64 reference."""

from __future__ import annotations

from typing import Any

import pytest

import titanrl
from tests.golden import cases
from titanrl.ops.masked import where0

CASES = cases.load("advantage")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_advantage_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_advantage_golden(case: dict[str, Any]) -> None:
    estimator = titanrl.build("advantage", cases.table(case))
    batch = cases.batch(case)
    for _ in range(case.get("repeat", 1)):
        got = estimator(batch)

    mask = batch["loss_mask"]
    for name in ("advantage", "returns"):
        if case["expect"][name] is not None:
            value = getattr(got, name)
            expected = cases.tensor(case["expect"][name])
            cases.assert_close(where0(mask, value), where0(mask, expected), case["tolerance"], name)
            assert not where0(~mask, value).any(), f"{name} is not 0 where masked"


def test_every_advantage_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("advantage"))
