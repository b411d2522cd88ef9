"""The objective: one graph that knows its gradient, and metrics that add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from titanrl import PolicyOutputs, TokenLoss
from titanrl.algorithm.objective import Objective, compiled

COEFFICIENTS = torch.tensor([0.1, 0.01])


def run_as_captured(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend without code generation."""
    return graph.forward


def step(rows: int = 2, length: int = 5) -> tuple[PolicyOutputs, TensorDict]:
    generator = torch.Generator().manual_seed(0)
    logprob = -torch.rand(rows, length, generator=generator)
    mask = torch.rand(rows, length, generator=generator) < 0.7
    policy = PolicyOutputs(
        logprob=logprob.requires_grad_(),
        entropy=torch.rand(rows, length, generator=generator).requires_grad_(),
    )
    keys = {"loss_mask": mask, "loss_weight": mask / mask.sum()}
    for name in ("old_logprob", "ref_logprob"):
        keys[name] = logprob.detach() + 0.3 * torch.randn(rows, length, generator=generator)
    keys["advantage"] = torch.where(mask, torch.randn(rows, length, generator=generator), 0.0)
    return policy, TensorDict(keys, batch_size=[rows])


def objective(**fields: bool) -> Objective:
    return Objective(
        loss=titanrl.build("loss", {"name": "ppo_clip"}), kl=titanrl.build("kl", {"name": "k3"}), **fields
    )


def gradients(total: torch.Tensor, policy: PolicyOutputs) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(total, [policy.logprob, policy.entropy], allow_unused=True)


@pytest.mark.slow
def test_compiled_gradient_follows_the_scale_of_the_loss() -> None:
    policy, batch = step()
    eager = objective(entropy=True)
    fast = compiled(eager, run_as_captured)
    expected = gradients(3 * eager(policy, batch, COEFFICIENTS)[0], policy)
    for got, wanted in zip(
        gradients(3 * fast(policy, batch, COEFFICIENTS)[0], policy), expected, strict=True
    ):
        assert got is not None
        torch.testing.assert_close(got, wanted)


@pytest.mark.slow
def test_compiled_on_policy_objective_stops_the_gradient_through_old_logprob() -> None:
    policy, batch = step()
    eager = objective(on_policy=True)
    fast = compiled(eager, run_as_captured)
    for function in (eager, fast):
        total, sums = function(policy, batch.exclude("old_logprob"), COEFFICIENTS * 0)
        (gradient, _) = gradients(total, policy)
        torch.testing.assert_close(gradient, -batch["advantage"] * batch["loss_weight"])
        assert sums["loss/approx_kl"][0] == 0


@pytest.mark.slow
def test_compiled_objective_gives_no_gradient_to_unused_inputs() -> None:
    """A gradient of zeros would cost the head a pass over the vocabulary."""
    policy, batch = step()
    total, sums = compiled(objective(), run_as_captured)(policy, batch, COEFFICIENTS)
    assert gradients(total, policy)[1] is None
    assert not any(value.requires_grad for pair in sums.values() for value in pair)


@pytest.mark.slow
def test_compiled_objective_does_not_modify_the_batch() -> None:
    policy, batch = step()
    before = batch.clone()
    compiled(objective(on_policy=True), run_as_captured)(policy, batch.lock_(), COEFFICIENTS)
    assert set(batch.keys()) == set(before.keys())
    assert all(torch.equal(batch[key], before[key]) for key in before.keys())  # noqa: SIM118


def test_sequence_loss_counts_per_token_and_its_metric_once_per_row() -> None:
    def loss(policy: PolicyOutputs, batch: Any) -> TokenLoss:
        row = torch.tensor([[2.0], [5.0], [float("nan")]])
        return TokenLoss(row, {"row": row})

    mask = torch.tensor([[True, True, True], [True, False, False], [False] * 3])
    batch = {"loss_mask": mask, "loss_weight": mask / 4}
    total, sums = Objective(loss=loss)(PolicyOutputs(logprob=torch.zeros(3, 3)), batch, COEFFICIENTS)
    assert total.item() == (3 * 2.0 + 5.0) / 4
    assert [value.item() for value in sums["loss/row"]] == [2.0 + 5.0, 2.0]


@pytest.mark.slow
def test_objectives_have_separate_recompile_limits() -> None:
    policy, batch = step()
    with torch._dynamo.config.patch(recompile_limit=1):
        for clip_high in (0.2, 0.3):
            loss = titanrl.build("loss", {"name": "ppo_clip", "clip_high": clip_high})
            compiled(Objective(loss=loss), run_as_captured)(policy, batch, COEFFICIENTS)
