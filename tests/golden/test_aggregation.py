"""Every aggregation against weights of a float64 reference."""

from __future__ import annotations

from typing import Any

import pytest

import titanrl
from tests.golden import cases

CASES = cases.load("aggregation")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_aggregation_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_aggregation_golden(case: dict[str, Any]) -> None:
    batch = cases.batch(case)
    weight = titanrl.build("aggregation", cases.table(case))(batch["loss_mask"], batch["group_id"])

    cases.assert_close(weight, cases.tensor(case["expect"]["weight"]), case["tolerance"], "weight")
    assert not weight[~batch["loss_mask"]].any()


def test_every_aggregation_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("aggregation"))
