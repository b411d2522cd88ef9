"""Every filter against hand-checked keep masks."""

from __future__ import annotations

from typing import Any

import pytest

import titanrl
from tests.golden import cases

CASES = cases.load("filter")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_filter_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_filter_golden(case: dict[str, Any]) -> None:
    keep = titanrl.build("filter", cases.table(case))(cases.batch(case))
    assert keep.tolist() == case["expect"]["keep"]


def test_every_filter_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("filter"))
