"""The KL term is a matrix: estimator x gradient x placement x schedule, the same for every preset.

Each cell builds, passes the checks and adds what the formula says, or is refused with a remedy that works.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.laws.estimate_batches import Shape, scored_batch
from titanrl import PolicyOutputs
from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.objective import Objective
from titanrl.algorithm.table import Algorithm
from titanrl.config.checks import cross_problems
from titanrl.config.load import read
from titanrl.ops.masked import where0
from titanrl.ops.sequence import is_last_loss_token
from titanrl.registry.decode import decode

PRESETS = sorted((Path(__file__).parents[2] / "experiments" / "algorithms").glob("*.toml"))
every_preset = pytest.mark.parametrize("preset", PRESETS, ids=[path.stem for path in PRESETS])

Formula = Callable[[torch.Tensor], torch.Tensor]
ESTIMATORS: dict[str, tuple[Formula, Formula]] = {
    "k1": (lambda d: d, torch.ones_like),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: (-d).exp() - 1 + d, lambda d: 1 - (-d).exp()),
    "abs": (torch.abs, torch.sign),
}
"""Name -> value and pathwise derivative, of the log-ratio d."""
SCHEDULES: dict[str, tuple[dict[str, Any], float]] = {
    "constant": ({"name": "fixed", "coefficient": 0.1}, 0.1),
    "linear": ({"name": "linear", "start": 0.2, "end": 0.0, "steps": 4}, 0.15),
    "cosine": ({"name": "cosine", "start": 0.2, "end": 0.0, "steps": 4}, 0.1 + 0.1 * math.cos(math.pi / 4)),
    "adaptive": ({"name": "adaptive", "coefficient": 0.1, "horizon": 100}, 0.1 * (1 + 0.2 * 10 / 100)),
}
"""Name -> controller, and its coefficient after one step of 10 sequences with a KL of .3."""


def algorithm(preset: Path, kl: dict[str, Any] | None, source: str | None = None) -> Algorithm:
    """Returns the preset's algorithm with another KL term."""
    table = {key: value for key, value in read(preset).table["algorithm"].items() if key != "kl"}
    if table["aggregation"]["name"] == "constant_length":
        table["aggregation"] = {"length": 8, **table["aggregation"]}
    if table.get("advantage", {}).get("name") == "gdpo":
        table["advantage"] = {"rewards": ["a", "b"], **table["advantage"]}
    if source is not None:
        table["advantage"] = {**table["advantage"], "source": source}
    found: Algorithm = decode(Algorithm, table if kl is None else {**table, "kl": kl})
    return found


def cells(placement: str) -> Iterator[tuple[dict[str, Any], float, str, str]]:
    """Yields KL table, coefficient after a step, estimator and gradient."""
    gradients = ("pathwise", "straight_through_k2") if placement == "loss" else ("pathwise",)
    for name, gradient, schedule in itertools.product(ESTIMATORS, gradients, SCHEDULES):
        controller, coefficient = SCHEDULES[schedule]
        table = {"name": name, "gradient": gradient, "placement": placement, "controller": controller}
        yield table, coefficient, name, gradient


def advanced(chosen: Algorithm) -> Algorithm:
    """Lets the controller see one step, so that a schedule is not at its start."""
    assert chosen.kl is not None
    chosen.kl.controller.update(0.3, 10, 0)
    return chosen


def step(chosen: Algorithm) -> TensorDict:
    """Returns two groups with whatever a stage may read."""
    batch = scored_batch(Shape((2, 4), 5, 3, 0.8))
    rows, length = batch["loss_mask"].shape
    generator = torch.Generator().manual_seed(1)
    readers = (chosen.advantage, *chosen.filter)
    labels = {key[1] for reader in readers for key in getattr(reader, "in_keys", ()) if key[0] == "rewards"}
    scores = {label: torch.rand(rows, generator=generator) for label in labels}
    batch["rewards"] = TensorDict(scores, batch_size=[rows])
    batch["reward"] = torch.rand(rows, generator=generator)
    batch["returns"] = torch.rand(rows, length, generator=generator)
    batch["reference_point"] = torch.full((rows,), 0.125)
    batch["current_version"] = torch.full((rows,), 7, dtype=torch.int32)
    versions = torch.randint(0, 8, (rows, length), generator=generator, dtype=torch.int32)
    batch["policy_version_token"] = torch.where(batch["loss_mask"], versions, -1)
    batch["candidate_ids"] = torch.zeros(rows, length, 3, dtype=torch.int64)
    if chosen.advantage is not None:
        del batch["token_reward"]  # Else they are labels of the data's own.
    batch["candidate_logprob"] = torch.rand(rows, length, 3, generator=generator).log_softmax(-1) - 0.5
    return batch


def policy_of(batch: TensorDict) -> PolicyOutputs:
    generator = torch.Generator().manual_seed(2)
    shape = batch["loss_mask"].shape
    noise = [torch.rand(shape, generator=generator) for _ in range(3)]
    return PolicyOutputs(
        logprob=(batch["old_logprob"] + 0.3 * noise[0]).requires_grad_(),
        entropy=noise[1],
        value=noise[2],
        sum_pi_squared=0.1 + 0.8 * noise[1],
        candidate_logprob=batch["candidate_logprob"] - 0.1,
    )


def evaluate(chosen: Algorithm, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the total and its gradient with respect to the log-probs."""
    term = chosen.kl_in_loss
    objective = Objective(loss=chosen.loss, kl=None if term is None else term.estimator)
    beta = 0.0 if term is None else term.controller.coefficient
    policy = policy_of(batch)
    total, _ = objective(policy, compute_loss_weights(batch, chosen), torch.tensor([beta, 0.0]))
    if not total.requires_grad:
        return total, torch.zeros_like(policy.logprob)
    (gradient,) = torch.autograd.grad(total, policy.logprob, materialize_grads=True)
    return total.detach(), gradient


def problems(chosen: Algorithm) -> list[str]:
    found = cross_problems({"algorithm": chosen})
    return [str(problem) for problem in found if problem.where == "algorithm.kl"]


def k_of(batch: TensorDict, name: str) -> torch.Tensor:
    """Returns k(old, reference) by its formula, 0 where masked."""
    mask = batch["loss_mask"]
    difference = where0(mask, batch["old_logprob"]) - where0(mask, batch["ref_logprob"])
    return where0(mask, ESTIMATORS[name][0](difference))


@every_preset
def test_kl_in_the_loss_adds_value_and_gradient(preset: Path) -> None:
    plain = algorithm(preset, None)
    batch, _ = compute_advantages(step(plain), plain)
    base, base_gradient = evaluate(plain, batch)
    mask, weight = batch["loss_mask"], compute_loss_weights(batch, plain)["loss_weight"]
    difference = where0(mask, policy_of(batch).logprob.detach() - batch["ref_logprob"])
    assert mask.any()
    for table, coefficient, name, gradient in cells("loss"):
        chosen = advanced(algorithm(preset, table))
        assert problems(chosen) == []
        value, slope = ESTIMATORS[name]
        slope = slope if gradient == "pathwise" else ESTIMATORS["k2"][1]
        total, got = evaluate(chosen, compute_advantages(step(chosen), chosen)[0])
        expected = coefficient * (weight * value(difference)).sum()
        torch.testing.assert_close(total - base, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got - base_gradient, coefficient * weight * slope(difference))


@every_preset
def test_kl_in_the_reward_is_subtracted_or_refused_with_a_remedy(preset: Path) -> None:
    for table, coefficient, name, _ in cells("reward"):
        chosen = algorithm(preset, table)
        refusal = problems(chosen)
        if refusal and hasattr(chosen.advantage, "source"):
            assert "source = 'token_reward'" in refusal[0]
            chosen = algorithm(preset, table, source="token_reward")
            refusal = problems(chosen)
        if refusal:
            remedy = "loss" if chosen.advantage is None else "advantage"
            assert f"'{remedy}'" in refusal[0]
            assert problems(algorithm(preset, {**table, "placement": remedy})) == []
            continue
        batch, metrics = compute_advantages(step(chosen), advanced(chosen))
        placed = where0(is_last_loss_token(batch["loss_mask"]), batch["reward"].unsqueeze(-1))
        torch.testing.assert_close(batch["token_reward"], placed - coefficient * k_of(batch, name))
        assert batch["advantage"].isfinite().all()
        assert math.isfinite(metrics["kl/value"])


@every_preset
def test_kl_in_the_advantage_is_subtracted_from_any_estimator(preset: Path) -> None:
    plain = algorithm(preset, None)
    if plain.advantage is None:
        pytest.skip("trains without advantages")
    before = compute_advantages(step(plain), plain)[0]
    for table, coefficient, name, _ in cells("advantage"):
        chosen = advanced(algorithm(preset, table))
        assert problems(chosen) == []
        batch, _ = compute_advantages(step(chosen), chosen)
        expected = before["advantage"] - coefficient * k_of(batch, name)
        torch.testing.assert_close(batch["advantage"], expected)


@pytest.mark.parametrize("placement", ["reward", "advantage"])
def test_a_gradient_that_would_be_ignored_is_refused(placement: str) -> None:
    table = {"name": "k3", "gradient": "straight_through_k2", "placement": placement, "coefficient": 0.1}
    with pytest.raises(titanrl.ConfigError, match="gradient must be 'pathwise'"):
        algorithm(PRESETS[0], table)
