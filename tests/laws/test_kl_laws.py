"""Laws of every KL estimator: what its expected value and gradient are, found by enumerating all actions.

Its class says by ``matches`` what they are.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import titanrl
from tests.laws.batches import LAW
from tests.laws.kl_estimators import GRADIENTS, build, gradients
from titanrl.protocols import KLEstimator
from titanrl.registry import component_class

every_estimator = pytest.mark.parametrize("name", titanrl.names("kl"))
PAGE = Path(__file__).parents[2] / "docs" / "kl.md"

LOGITS = torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64)
REF_LOGPROB = torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64).log_softmax(0)


def reverse_kl(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    logprob = logits.log_softmax(0)
    return (logprob.exp() * (logprob - ref_logprob)).sum()


def forward_kl(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    return (ref_logprob.exp() * (ref_logprob - logits.log_softmax(0))).sum()


def total_variation(logits: torch.Tensor, ref_logprob: torch.Tensor) -> torch.Tensor:
    """Twice the total variation, sum |pi - ref|."""
    return (logits.softmax(0) - ref_logprob.exp()).abs().sum()


CASES = [(name, gradient) for name in titanrl.names("kl") for gradient in gradients(name)]


def declared(name: str) -> dict[str, str]:
    """Returns what the class says its expected value and gradient are, by use; nothing if it says nothing."""
    matches: dict[str, str] = getattr(component_class("kl", name), "matches", {})
    return matches


def use(name: str, gradient: str) -> str:
    """Returns how ``matches`` calls an estimator in the loss, with that gradient where there is a choice."""
    return f"loss, {gradient}" if len(gradients(name)) > 1 else "loss"


def is_built_in(name: str) -> bool:
    return component_class("kl", name).__module__.startswith("titanrl.")


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
            use(name, gradient): classify(
                in_loss(build(name, gradient, **free), logits, ref_logprob), logits, ref_logprob
            )
            for gradient in gradients(name)
        },
    }
    value = expected_value(build(name, **free), logits, ref_logprob)
    is_unbiased = torch.allclose(value, reverse_kl(logits, ref_logprob), atol=1e-12)
    found["value"] = "reverse KL" if is_unbiased else "biased"
    assert found == declared(name), (
        f"kl {name!r} must say what it estimates. Found: {found}; if that is meant, say in the class: "
        "matches: ClassVar[dict[str, str]] = ..., see docs/kl.md."
    )


@pytest.mark.parametrize("name", [name for name in titanrl.names("kl") if is_built_in(name)])
def test_kl_page_shows_the_declared_expectations(name: str) -> None:
    rows = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.read_text().splitlines()]
    shown = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}
    matches = declared(name)
    expected = [matches[key] for key in ("value", *(f"loss, {each}" for each in GRADIENTS), "reward")]
    assert shown[name] == expected


def gradient_of(name: str, gradient: str) -> list[float]:
    return in_loss(build(name, gradient), LOGITS, REF_LOGPROB).tolist()


RIGHT = [-0.029896, -0.222218, 0.252114]


def test_kl_in_the_loss_golden() -> None:
    assert reverse_kl(LOGITS, REF_LOGPROB).item() == pytest.approx(0.182888, abs=1e-6)
    assert gradient_of("k2", "pathwise") == pytest.approx(RIGHT, abs=1e-6)
    for name in ("k1", "k2", "k3", "abs"):
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


@pytest.mark.parametrize(
    ("name", "gradient"), [case for case in CASES if declared(case[0]).get(use(*case)) == "reverse KL"]
)
def test_raising_beta_lowers_kl(name: str, gradient: str) -> None:
    after = []
    for beta in (0.0, 0.5, 1.0):
        step = LOGITS - beta * in_loss(build(name, gradient), LOGITS, REF_LOGPROB)
        after.append(float(reverse_kl(step, REF_LOGPROB)))
    assert after == sorted(after, reverse=True)
