"""Laws of every KL estimator as a term of the objective: masks, compilation, extremes, and its own table."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest
import torch

import titanrl
from tests.laws.batches import sample
from tests.laws.kl_estimators import build, every_gradient, gradients
from tests.laws.stop_gradient import central_differences
from tests.laws.test_loss_compiles import check_all_lengths, run_eagerly
from titanrl.algorithm.objective import Objective

every_estimator = pytest.mark.parametrize("name", titanrl.names("kl"))


@every_estimator
@pytest.mark.parametrize("weighted", [False, True])
def test_kl_gradient_is_that_of_central_differences(name: str, weighted: bool) -> None:
    policy, batch = sample([2], 4, seed=5)
    for gradient in gradients(name):
        objective = Objective(
            loss=titanrl.build("loss", {"name": "sft"}), kl=build(name, gradient), importance_weight=weighted
        )

        def total(x: torch.Tensor, objective: Objective = objective) -> torch.Tensor:
            return objective(policy._replace(logprob=x), batch, torch.tensor([0.7, 0.0]).double())[0]

        x = policy.logprob.clone().requires_grad_()
        analytic = torch.autograd.grad(total(x), x)[0]
        if gradient == "pathwise":
            assert torch.allclose(analytic, central_differences(total, x.detach()), rtol=1e-6, atol=1e-8)
        assert analytic.isfinite().all()


@every_gradient
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e9])
def test_kl_term_ignores_masked_positions(name: str, gradient: str, garbage: float) -> None:
    policy, batch = sample([2, 4], 5, seed=6)
    mask = batch["loss_mask"]
    objective = Objective(loss=titanrl.build("loss", {"name": "sft"}), kl=build(name, gradient))

    def run(fill: float | None) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        def place(x: torch.Tensor) -> torch.Tensor:
            return x if fill is None else torch.where(mask, x, fill)

        logprob = place(policy.logprob).requires_grad_()
        total, sums = objective(
            policy._replace(logprob=logprob),
            {**batch, "ref_logprob": place(batch["ref_logprob"])},
            torch.tensor([0.7, 0.0]),
        )
        return total.detach(), torch.autograd.grad(total, logprob)[0], sums

    total, analytic, sums = run(None)
    dirty_total, dirty_analytic, dirty_sums = run(garbage)
    assert torch.equal(total, dirty_total)
    assert torch.equal(analytic, dirty_analytic)
    assert not dirty_analytic[~mask].any()
    assert all(torch.equal(sums[key][0], dirty_sums[key][0]) for key in sums)


@every_estimator
def test_kl_is_one_graph_for_all_lengths(name: str) -> None:
    kl = build(name, "straight_through_k2")
    check_all_lengths(Objective(loss=titanrl.build("loss", {"name": "sft"}), kl=kl), run_eagerly)


@every_gradient
def test_kl_gives_the_reference_no_gradient(name: str, gradient: str) -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    ref_logprob = torch.tensor([-1.5, -0.5], requires_grad=True)
    value = build(name, gradient)(logprob, ref_logprob).sum()
    assert torch.autograd.grad(value, ref_logprob, allow_unused=True)[0] is None


@every_gradient
@pytest.mark.parametrize("input_clamp", [20.0, math.inf])
def test_kl_of_a_token_far_from_the_reference_has_a_finite_gradient(
    name: str, gradient: str, input_clamp: float
) -> None:
    logprob = torch.tensor([-200.0, -1.0], requires_grad=True)
    value = build(name, gradient, input_clamp=input_clamp)(logprob, torch.tensor([-1.0, -200.0]))
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), logprob)[0].isfinite().all()


@every_gradient
@pytest.mark.parametrize("infinite", ["logprob", "ref_logprob"])
def test_kl_of_an_impossible_token_is_finite(name: str, gradient: str, infinite: str) -> None:
    logprob = torch.tensor([-math.inf if infinite == "logprob" else -1.0], requires_grad=True)
    ref_logprob = torch.tensor([-math.inf if infinite == "ref_logprob" else -1.0])
    value = build(name, gradient)(logprob, ref_logprob)
    assert value.isfinite()
    assert torch.autograd.grad(value.sum(), logprob)[0].item() == 0


@every_estimator
def test_kl_survives_pickle_and_rebuilding(name: str) -> None:
    estimator = build(name, "straight_through_k2", input_clamp=3.0)
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    fields = {field.name: getattr(estimator, field.name) for field in dataclasses.fields(estimator)}
    assert titanrl.build("kl", {"name": name, **fields}) == estimator
