"""Every correction against weights, keep masks and metrics of a float64 reference."""

from __future__ import annotations

from typing import Any

import pytest

import titanrl
from tests.golden import cases

CASES = cases.load("correction")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_correction_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_correction_golden(case: dict[str, Any]) -> None:
    batch, expect = cases.batch(case), case["expect"]
    got = titanrl.build("correction", cases.table(case))(batch)

    assert got.keep.tolist() == expect["keep"]
    cases.assert_close(got.weight, cases.tensor(expect["weight"]), case["tolerance"], "weight")
    assert not got.weight[~batch["loss_mask"]].any()
    for name, value in expect["metrics"].items():
        cases.assert_close(got.metrics[name], cases.tensor(value), case["tolerance"], name)


def test_every_correction_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("correction"))
