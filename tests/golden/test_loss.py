"""Every loss against values, totals, gradients and metrics of a float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import titanrl
from tests.golden import cases

CASES = cases.load("loss")
REFUSED = [case for case in CASES if "error" in case["expect"]]
COMPUTED = [case for case in CASES if "error" not in case["expect"]]


@pytest.mark.parametrize("case", REFUSED, ids=cases.ids(REFUSED))
def test_loss_refuses(case: dict[str, Any]) -> None:
    cases.assert_refused(case)


@pytest.mark.parametrize("case", COMPUTED, ids=cases.ids(COMPUTED))
def test_loss_golden(case: dict[str, Any]) -> None:
    loss = titanrl.build("loss", cases.table(case))
    batch, policy, expect = cases.batch(case), cases.policy(case), case["expect"]
    before = batch.clone()
    mask = batch["loss_mask"]

    result = loss(policy, batch)
    total = (batch["loss_weight"] * result.loss).sum()
    given = [name for name, value in policy._asdict().items() if value is not None]
    gradients = torch.autograd.grad(total, [getattr(policy, name) for name in given], materialize_grads=True)

    assert result.loss.shape in (mask.shape, (len(mask), 1))
    if result.loss.shape == mask.shape:
        assert not result.loss[~mask].any()
    token_loss = result.loss.expand_as(mask)
    cases.assert_close(token_loss[mask], cases.tensor(expect["loss"])[mask], case["tolerance"], "loss")
    cases.assert_close(total, cases.tensor(expect["total"]), case["tolerance"], "total")
    for name, gradient in zip(given, gradients, strict=True):
        assert not gradient[~mask].any(), name
        # A field without expected gradient is only looked at (sum_pi_squared under wpo).
        wanted = cases.tensor(expect["grad"][name]) if name in expect["grad"] else torch.zeros_like(gradient)
        cases.assert_close(gradient[mask], wanted[mask], case["tolerance"], f"gradient of {name}")
    for name, wanted in expect.get("metrics", {}).items():
        got = result.metrics[name].expand_as(mask)[mask].mean()
        cases.assert_close(got, cases.tensor(wanted), case["tolerance"], name)
    for key, value in before.items():
        assert torch.equal(value.nan_to_num(7.0), batch[key].nan_to_num(7.0)), f"{key} was written to"


def test_every_loss_has_a_golden_case() -> None:
    assert {case["table"]["name"] for case in COMPUTED} == set(titanrl.names("loss"))
