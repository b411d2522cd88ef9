"""Speed and memory of compiled losses relative to eager ones, forward and backward on [256, 1024].

One benchmark per loss, in one thread; each first asserts that compiled equals eager. Compiling all of them
takes some minutes: ``pytest benchmarks/test_bench_losses.py --benchmark-enable -k ppo_clip`` times one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from benchmarks.timing import compare, peak_bytes
from titanrl import PolicyOutputs
from titanrl.algorithm.objective import Objective, compiled

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, LENGTH, CANDIDATES = 256, 1024, 8
COEFFICIENTS = torch.tensor([0.04, 0.01])
GATE = 3.0
FLOORS = {
    "bradley_terry": 1.3,
    "clip_cov": 1.0,
    "dft": 2.0,
    "dppo_kl": 2.5,
    "gmpo": 1.7,
    "ipo": 2.2,
    "kl_cov": 1.0,
    "kto": 2.0,
    "mirror_descent": 2.5,
    "orpo": 2.0,
    "pairwise_ranking": 1.2,
    "reinforce": 2.2,
    "sft": 1.8,
    "simpo": 1.9,
    "topk_distill": 1.5,
    "vespo": 2.2,
    "cpo": 2.2,
    "process_bce": 2.3,
}
"""Required ratios of losses that compiling makes about 3 times faster or less; see docs/log.md."""
EXTRA_BYTES = 10_000_000


def step() -> tuple[PolicyOutputs, TensorDict]:
    """Returns groups of 8 responses of 100 to 1024 tokens, with all keys that losses read."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(*size, generator=generator)

    tokens = torch.randint(100, LENGTH + 1, (ROWS, 1), generator=generator)
    mask = torch.arange(LENGTH) < tokens
    group_id = torch.arange(ROWS) // 8
    old = -normal(ROWS, LENGTH).abs() - 0.01
    aggregation = titanrl.build("aggregation", {"name": "sequence_mean"})
    candidates = torch.log_softmax(normal(ROWS, LENGTH, 2 * CANDIDATES), -1)
    batch = {
        "loss_mask": mask,
        "loss_weight": aggregation(mask, group_id),
        "group_id": group_id,
        "old_logprob": old,
        "ref_logprob": old + normal(ROWS, LENGTH, scale=0.1),
        "advantage": torch.where(mask, normal(ROWS, 1), 0.0),
        "value": normal(ROWS, LENGTH),
        "returns": torch.where(mask, normal(ROWS, LENGTH), 0.0),
        "reward": normal(ROWS),
        "token_reward": torch.rand(ROWS, LENGTH, generator=generator),
        "reference_point": torch.full((ROWS,), 0.1),
        "candidate_ids": torch.zeros(ROWS, LENGTH, CANDIDATES, dtype=torch.int64),
        "candidate_logprob": candidates[..., :CANDIDATES].contiguous(),
    }
    policy = PolicyOutputs(
        logprob=old + normal(ROWS, LENGTH, scale=0.2),
        entropy=normal(ROWS, LENGTH).abs(),
        value=normal(ROWS, LENGTH),
        candidate_logprob=candidates[..., CANDIDATES:].contiguous(),
    )
    leaves = (None if field is None else field.requires_grad_() for field in policy)
    return PolicyOutputs._make(leaves), TensorDict(batch, batch_size=[ROWS])


def gradients(
    function: Callable[..., Any], policy: PolicyOutputs, batch: TensorDict
) -> dict[str, torch.Tensor | None]:
    """Runs forward and backward; returns the gradient of each field of the policy."""
    total, _ = function(policy, batch, COEFFICIENTS)
    given = {name: field for name, field in policy._asdict().items() if field is not None}
    return dict(zip(given, torch.autograd.grad(total, list(given.values()), allow_unused=True), strict=True))


def only_needed(policy: PolicyOutputs, objective: Objective) -> PolicyOutputs:
    """Returns only the outputs that the head would compute for this objective."""
    needed = {"logprob", *getattr(objective.loss, "needs", ()), *(("entropy",) if objective.entropy else ())}
    return PolicyOutputs(**{name: field for name, field in policy._asdict().items() if name in needed})


def bench(benchmark: Any, objective: Objective, at_least: float) -> None:
    policy, batch = step()
    policy = only_needed(policy, objective)
    fast = compiled(objective, "inductor" if benchmark.enabled else "eager")
    expected = gradients(objective, policy, batch)
    for name, got in gradients(fast, policy, batch).items():
        wanted = expected[name]
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6 * float(wanted.abs().max()))
    compare(
        benchmark,
        lambda: gradients(fast, policy, batch),
        lambda: gradients(objective, policy, batch),
        at_least,
        against="eager",
    )


@pytest.mark.parametrize("name", titanrl.names("loss"))
def test_bench_loss(benchmark: Any, name: str) -> None:
    objective = Objective(loss=titanrl.build("loss", {"name": name}))
    bench(benchmark, objective, FLOORS.get(name, GATE))


def full_objective() -> Objective:
    return Objective(
        loss=titanrl.build("loss", {"name": "ppo_clip"}), kl=titanrl.build("kl", {"name": "k3"}), entropy=True
    )


def test_bench_objective(benchmark: Any) -> None:
    """ppo_clip + k3 + entropy + weights + metrics."""
    bench(benchmark, full_objective(), 8.0)


def test_compiled_objective_needs_little_memory(tmp_path: Path) -> None:
    """Memory beyond its inputs: gradients, the mask as float32, and the gradients times the upstream one."""
    policy, batch = step()
    policy, fast = only_needed(policy, full_objective()), compiled(full_objective())
    gradients(fast, policy, batch)
    peak = peak_bytes(lambda: gradients(fast, policy, batch), tmp_path)
    assert 2 * 4 * ROWS * LENGTH <= peak <= EXTRA_BYTES


def test_eager_gradient_is_bitwise_that_of_the_plain_formula() -> None:
    policy, batch = step()
    got = gradients(full_objective(), only_needed(policy, full_objective()), batch)
    logprob, entropy = policy.logprob, policy.entropy
    mask = batch["loss_mask"]

    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, 0.0)

    beta, eta = COEFFICIENTS.unbind()
    advantage, now = masked(batch["advantage"]), masked(logprob)
    ratio = (now - masked(batch["old_logprob"])).clamp(-20, 20).exp()
    clipped, plain = ratio.clamp(0.8, 1.2) * advantage, ratio * advantage
    surrogate = torch.where(clipped < plain, clipped, plain)
    difference = (now - masked(batch["ref_logprob"])).clamp(-20, 20)
    kl = (torch.expm1(-difference) + difference).clamp(-10, 10)
    total = (masked(batch["loss_weight"]) * (-surrogate + beta * kl - eta * masked(entropy))).sum()
    wanted = torch.autograd.grad(total, [logprob, entropy])
    assert torch.equal(got["logprob"], wanted[0])
    assert torch.equal(got["entropy"], wanted[1])
