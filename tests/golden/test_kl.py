"""Every KL estimator against values and gradients of a float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import titanrl
from tests.golden import cases

CASES = cases.load("kl")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_kl_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_kl_golden(case: dict[str, Any]) -> None:
    estimator = titanrl.build("kl", cases.table(case))
    logprob = cases.tensor(case["policy"]["logprob"]).requires_grad_()
    ref_logprob = cases.tensor(case["policy"]["ref_logprob"]).requires_grad_()

    value = estimator(logprob, ref_logprob)
    gradient, ref_gradient = torch.autograd.grad(value.sum(), (logprob, ref_logprob), materialize_grads=True)

    cases.assert_close(value, cases.tensor(case["expect"]["value"]), case["tolerance"], "value")
    cases.assert_close(gradient, cases.tensor(case["expect"]["grad"]), case["tolerance"], "gradient")
    assert not ref_gradient.any()


def test_every_kl_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("kl"))
