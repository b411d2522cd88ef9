"""The KL term from rewards to gradient: its metric, its placement, its precision, its expected gradient."""

from __future__ import annotations

import math

import pytest
import torch

import titanrl
from tests.unit.algorithm.test_compute_advantages import algorithm, batch_of
from titanrl import PolicyOutputs
from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.objective import Objective
from titanrl.ops.logprob import token_statistics

LOGITS = torch.tensor([0.2, -0.1, 0.4])
REF_LOGPROB = torch.tensor([0.0, 0.5, -0.5]).log_softmax(0)
KL_GRADIENT = [-0.029896, -0.222218, 0.252114]
"""Of KL(policy || reference) with respect to LOGITS."""


@pytest.mark.parametrize("reward", [1.0, -3.0, 0.0])
@pytest.mark.parametrize("placement", ["reward", "advantage"])
def test_kl_metric_does_not_depend_on_the_reward(placement: str, reward: float) -> None:
    batch = batch_of(
        loss_mask=[[True, True]],
        group_id=[0],
        reward=[reward],
        old_logprob=[[-1.0, -1.0]],
        ref_logprob=[[-1.2, -1.4]],
    )
    chosen = algorithm(
        kl={"placement": placement, "coefficient": 0.1},
        advantage={"name": "reinforce_plus_plus", "whiten": False},
    )
    got, metrics = compute_advantages(batch, chosen)
    assert metrics["kl/value"] == pytest.approx(0.3)
    penalty = torch.tensor([[0.02, 0.04]])
    placed = torch.tensor([[0.0, reward]])
    torch.testing.assert_close(
        got["token_reward"], placed - penalty if placement == "reward" else placed, rtol=1e-5, atol=1e-6
    )
    assert torch.equal(got["old_logprob"] - got["ref_logprob"], batch["old_logprob"] - batch["ref_logprob"])


def test_kl_metric_in_the_loss_does_not_depend_on_the_advantage() -> None:
    batch = {
        "loss_mask": torch.ones(1, 2, dtype=torch.bool),
        "loss_weight": torch.full((1, 2), 0.5),
        "ref_logprob": torch.tensor([[-1.2, -1.4]]),
    }
    objective = Objective(
        loss=titanrl.build("loss", {"name": "reinforce"}), kl=titanrl.build("kl", {"name": "k1"})
    )
    policy = PolicyOutputs(logprob=torch.full((1, 2), -1.0))
    for advantage in (1.0, -3.0):
        _, sums = objective(
            policy, {**batch, "advantage": torch.full((1, 2), advantage)}, torch.tensor([0.1, 0.0])
        )
        assert (sums["kl/value"][0] / sums["kl/value"][1]).item() == pytest.approx(0.3)


def test_token_kl_is_subtracted_once_from_the_reward() -> None:
    """RLOO's score is the sum of token rewards, .94 and 0; two rows leave .94 and -.94."""
    batch = batch_of(
        loss_mask=[[True] * 3] * 2,
        group_id=[0, 0],
        reward=[1.0, 0.0],
        old_logprob=[[-1.0, -1.0, -1.0]] * 2,
        ref_logprob=[[-1.1, -1.2, -1.3], [-1.0] * 3],
    )
    chosen = algorithm(
        kl={"placement": "reward", "coefficient": 0.1}, advantage={"name": "rloo", "source": "token_reward"}
    )
    got, _ = compute_advantages(batch, chosen)
    assert got["token_reward"][0].tolist() == pytest.approx([-0.01, -0.02, 0.97], abs=1e-6)
    assert got["token_reward"][0].sum().item() == pytest.approx(0.94)
    assert got["advantage"][:, 0].tolist() == pytest.approx([0.94, -0.94], abs=1e-6)


def test_logprobs_and_kl_keep_float32_precision() -> None:
    logits = torch.tensor([[3.0], [-7.3], [1.2], [0.4]])
    found = token_statistics(torch.ones(1, 1), logits, torch.tensor([[1]]))
    assert found.logprob.item() == pytest.approx(-10.514794, abs=2e-6)
    difference = titanrl.build("kl", {"name": "k1"})(torch.tensor([-10.02]), torch.tensor([-10.05]))
    assert difference.item() == pytest.approx(0.03, abs=2e-6)


@pytest.mark.parametrize(
    ("kl", "importance_weight"),
    [
        ({"placement": "reward"}, False),
        ({"placement": "advantage"}, False),
        ({"placement": "loss", "name": "k2"}, False),
        ({"placement": "loss", "name": "k1"}, True),
        ({"placement": "loss", "name": "k3"}, True),
    ],
)
def test_expected_kl_gradient_equals_the_exact_gradient(kl: dict[str, str], importance_weight: bool) -> None:
    """Every action once, weighed by its probability, without a reward: what is left is the KL."""
    logits = LOGITS.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    old = logprob.detach()
    batch = batch_of(
        loss_mask=[[True]] * 3,
        group_id=[0, 1, 2],
        reward=[0.0] * 3,
        old_logprob=old[:, None],
        ref_logprob=REF_LOGPROB[:, None],
    )
    advantage = {"name": "reinforce_plus_plus", "whiten": False}
    chosen = algorithm(kl={"coefficient": 1.0, **kl}, advantage=advantage)
    rows = compute_loss_weights(compute_advantages(batch, chosen)[0], chosen)
    rows["loss_weight"] = old.exp()[:, None]
    term = chosen.kl_in_loss
    objective = Objective(
        loss=chosen.loss, kl=None if term is None else term.estimator, importance_weight=importance_weight
    )
    total, _ = objective(PolicyOutputs(logprob=logprob[:, None]), rows, torch.tensor([1.0, 0.0]))
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.tolist() == pytest.approx(KL_GRADIENT, abs=1e-6)


def test_exact_kl_gradient_equals_the_hand_computed_one() -> None:
    """The same gradient, from the exact KL by autograd."""
    logits = LOGITS.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    exact = (logprob.exp() * (logprob - REF_LOGPROB)).sum()
    assert exact.item() == pytest.approx(0.182888, abs=1e-6)
    assert torch.autograd.grad(exact, logits)[0].tolist() == pytest.approx(KL_GRADIENT, abs=1e-6)
    assert math.isclose(sum(KL_GRADIENT), 0.0, abs_tol=1e-6)
