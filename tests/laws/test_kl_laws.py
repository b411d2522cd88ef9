"""Laws of every KL estimator: what its expected value and gradient are, found by enumerating all actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import titanrl
from tests.laws.batches import LAW, sample
from tests.laws.stop_gradient import central_differences
from tests.laws.test_loss_compiles import check_all_lengths, run_eagerly
from titanrl.objective import Objective
from titanrl.protocols import KLEstimator

GRADIENTS = ("pathwise", "straight_through_k2")
every_estimator = pytest.mark.parametrize("name", titanrl.names("kl"))
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)
PAGE = Path(__file__).parents[2] / "docs" / "kl.md"

LOGITS = torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64)
REF_LOGPROB = torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64).log_softmax(0)


def build(name: str, gradient: str = "pathwise", **fields: float) -> Any:
    return titanrl.build("kl", {"name": name, "gradient": gradient, **fields})


def reverse_kl(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    logprob = logits.log_softmax(0)
    return (logprob.exp() * (logprob - ref_logprob)).sum()


def forward_kl(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    return (ref_logprob.exp() * (ref_logprob - logits.log_softmax(0))).sum()


def total_variation(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    """Twice the total variation, sum |pi - ref|."""
    return (logits.softmax(0) - ref_logprob.exp()).abs().sum()


EXACT = {"reverse KL": reverse_kl, "forward KL": forward_kl, "total variation": total_variation}


def expected_value(estimator: KLEstimator, logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    """E over a ~ pi of the estimate."""
    logprob = logits.log_softmax(0)
    return (logprob.exp() * estimator(logprob, ref_logprob)).sum()


def in_loss(estimator: KLEstimator, logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    """E over a ~ pi of the gradient of the estimate; the samples are given, pi(a) is not differentiated."""
    logits = logits.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    surrogate = (logprob.detach().exp() * estimator(logprob, ref_logprob)).sum()
    return torch.autograd.grad(surrogate, logits)[0]


def in_reward(estimator: KLEstimator, logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    """E over a ~ pi of the estimate times grad log pi(a): REINFORCE with the estimate as a penalty."""
    logits = logits.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    penalty = estimator(logprob, ref_logprob).detach()
    return torch.autograd.grad((logprob.detach().exp() * penalty * logprob).sum(), logits)[0]


def exact_gradient(function: Any, logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(function)(logits, ref_logprob)


def classify(gradient: torch.Tensor, logits: torch.Tensor, ref_logprob: torch.Tensor) -> str:
    """Returns the name of the exact quantity whose gradient this is."""
    if gradient.abs().max() < 1e-12:
        return "zero"
    for name, function in EXACT.items():
        if torch.allclose(gradient, exact_gradient(function, logits, ref_logprob), atol=1e-12):
            return name
    return "biased"


@every_estimator
@given(seed=st.integers(0, 10_000), actions=st.integers(3, 5))
@LAW
def test_kl_matches_what_it_declares(name: str, seed: int, actions: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(actions, generator=generator, dtype=torch.float64)
    ref_logprob = torch.randn(actions, generator=generator, dtype=torch.float64).log_softmax(0)
    free = {"output_clamp": math.inf}
    found = {
        "reward": classify(in_reward(build(name, **free), logits, ref_logprob), logits, ref_logprob),
        **{
            f"loss, {gradient}": classify(
                in_loss(build(name, gradient, **free), logits, ref_logprob), logits, ref_logprob
            )
            for gradient in GRADIENTS
        },
    }
    value = expected_value(build(name, **free), logits, ref_logprob)
    is_unbiased = torch.allclose(value, reverse_kl(logits, ref_logprob), atol=1e-12)
    found["value"] = "reverse KL" if is_unbiased else "biased"
    assert found == build(name).matches


@every_estimator
@every_gradient
def test_kl_page_shows_what_it_matches(name: str, gradient: str) -> None:
    rows = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.read_text().splitlines()]
    shown = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}
    matches = build(name, gradient).matches
    expected = [matches[key] for key in ("value", *(f"loss, {each}" for each in GRADIENTS), "reward")]
    assert shown[name] == expected


def gradient_of(name: str, gradient: str) -> list[float]:
    return in_loss(build(name, gradient), LOGITS, REF_LOGPROB).tolist()


RIGHT = [-0.029896, -0.222218, 0.252114]


def test_kl_in_the_loss_golden() -> None:
    assert reverse_kl(LOGITS, REF_LOGPROB).item() == pytest.approx(0.182888, abs=1e-6)
    assert gradient_of("k2", "pathwise") == pytest.approx(RIGHT, abs=1e-6)
    for name in titanrl.names("kl"):
        assert gradient_of(name, "straight_through_k2") == pytest.approx(RIGHT, abs=1e-6)
    assert gradient_of("k1", "pathwise") == pytest.approx([0, 0, 0], abs=1e-6)
    assert gradient_of("k3", "pathwise") == pytest.approx([0.030389, -0.256392, 0.226003], abs=1e-6)


def test_k3_with_a_score_function_term_is_straight_through_k2() -> None:
    logits = LOGITS.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    k3 = build("k3")(logprob, REF_LOGPROB)
    surrogate = (logprob.detach().exp() * (k3 + k3.detach() * logprob)).sum()
    assert torch.autograd.grad(surrogate, logits)[0].tolist() == pytest.approx(RIGHT, abs=1e-6)


def test_kl_in_the_reward_golden() -> None:
    assert in_reward(build("k1"), LOGITS, REF_LOGPROB).tolist() == pytest.approx(RIGHT, abs=1e-6)
    biased = [-0.060284, 0.034173, 0.026111]
    assert in_reward(build("k3"), LOGITS, REF_LOGPROB).tolist() == pytest.approx(biased, abs=1e-6)


def test_kl_values_golden() -> None:
    logprob = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    ref_logprob = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    value = {name: build(name)(logprob, ref_logprob) for name in titanrl.names("kl")}
    mean = {name: float((logprob.exp() * x).sum()) for name, x in value.items()}
    assert mean["k1"] == pytest.approx(0.274887, abs=1e-6)
    assert mean["k3"] == pytest.approx(0.274887, abs=1e-6)
    assert mean["k2"] == pytest.approx(0.293856, abs=1e-6)
    assert mean["abs"] == pytest.approx(0.641404, abs=1e-6)
    variance = {name: float((logprob.exp() * (x - mean[name]).square()).sum()) for name, x in value.items()}
    assert variance["k1"] == pytest.approx(0.512149, abs=1e-6)
    assert variance["k3"] == pytest.approx(0.0426, abs=1e-4)


@every_estimator
@pytest.mark.parametrize("weighted", [False, True])
def test_kl_gradient_is_that_of_central_differences(name: str, weighted: bool) -> None:
    policy, batch = sample([2], 4, seed=5)
    for gradient in GRADIENTS:
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


@every_estimator
@every_gradient
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e9])
def test_kl_term_ignores_masked_places(name: str, gradient: str, garbage: float) -> None:
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


@every_estimator
@every_gradient
def test_kl_gives_the_reference_no_gradient(name: str, gradient: str) -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    ref_logprob = torch.tensor([-1.5, -0.5], requires_grad=True)
    value = build(name, gradient)(logprob, ref_logprob).sum()
    assert torch.autograd.grad(value, ref_logprob, allow_unused=True)[0] is None


@every_estimator
@every_gradient
@pytest.mark.parametrize("input_clamp", [20.0, math.inf])
def test_kl_of_a_token_far_from_the_reference_has_a_finite_gradient(
    name: str, gradient: str, input_clamp: float
) -> None:
    logprob = torch.tensor([-200.0, -1.0], requires_grad=True)
    value = build(name, gradient, input_clamp=input_clamp)(logprob, torch.tensor([-1.0, -200.0]))
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), logprob)[0].isfinite().all()


@every_estimator
@every_gradient
@pytest.mark.parametrize("infinite", ["logprob", "ref_logprob"])
def test_kl_of_an_impossible_token_is_finite(name: str, gradient: str, infinite: str) -> None:
    logprob = torch.tensor([-math.inf if infinite == "logprob" else -1.0], requires_grad=True)
    ref_logprob = torch.tensor([-math.inf if infinite == "ref_logprob" else -1.0])
    value = build(name, gradient)(logprob, ref_logprob)
    assert value.isfinite()
    assert torch.autograd.grad(value.sum(), logprob)[0].item() == 0


@pytest.mark.parametrize(
    ("name", "gradient"), [("k2", "pathwise"), *itertools.product(titanrl.names("kl"), GRADIENTS[1:])]
)
def test_raising_beta_lowers_kl(name: str, gradient: str) -> None:
    after = []
    for beta in (0.0, 0.5, 1.0):
        step = LOGITS - beta * in_loss(build(name, gradient), LOGITS, REF_LOGPROB)
        after.append(float(reverse_kl(step, REF_LOGPROB)))
    assert after == sorted(after, reverse=True)


@every_estimator
def test_kl_survives_pickle_and_rebuilding(name: str) -> None:
    estimator = build(name, "straight_through_k2", input_clamp=3.0)
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    fields = {field.name: getattr(estimator, field.name) for field in dataclasses.fields(estimator)}
    assert titanrl.build("kl", {"name": name, **fields}) == estimator
