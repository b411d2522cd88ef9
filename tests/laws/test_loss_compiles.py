"""Every loss is one graph for all shapes, gives what it gives eagerly, and never a stale number."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.laws import batches
from tests.laws.loss_tables import Table, table_id, tables
from titanrl import PolicyOutputs
from titanrl.algorithm.objective import Objective, compiled

ROOT = Path(__file__).parents[2]
LENGTHS = (9, 16, 17, 33, 8, 12, 25, 40, 3, 64, 2, 50)
COEFFICIENTS = torch.tensor([0.1, 0.01])
MOST_COMPILATIONS = 2
"""The first batch may have as many rows as columns, which makes its graph a special one."""


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.backend = backend
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1
        return self.backend(graph, inputs)


def run_eagerly(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend that generates no code: what is left of compilation is the capture of the graph."""
    return graph.forward


def run_compiled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The default backend; importing it takes seconds."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs)


def float32(rows: int, length: int) -> tuple[PolicyOutputs, TensorDict]:
    policy, batch = batches.sample([2] * (rows // 2), length, seed=length)
    batch["loss_weight"] = batch["loss_weight"] / batch["loss_weight"].sum()

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.float() if x.is_floating_point() else x

    return (
        batches.leaves(PolicyOutputs(*(cast(x) for x in policy))),
        TensorDict({key: cast(value) for key, value in batch.items()}, batch_size=[rows]),
    )


def run(function: Callable[..., Any], policy: PolicyOutputs, batch: TensorDict) -> list[torch.Tensor]:
    """Returns the total, its gradients and the metrics."""
    total, sums = function(policy, batch, COEFFICIENTS)
    gradients = torch.autograd.grad(total, list(policy), materialize_grads=True)
    return [total.detach(), *gradients, *(value / count for value, count in sums.values())]


def check_all_lengths(objective: Objective, backend: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    counting = Counting(backend)
    fast = compiled(objective, counting)
    for index, length in enumerate(LENGTHS):
        # More rows than a vector register holds numbers, too: rows left over are computed by other code.
        policy, batch = float32((4, 18, 34)[index % 3], length)
        pairs = zip(run(fast, policy, batch), run(objective, policy, batch), strict=True)
        for got, expected in pairs:
            assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6), (length, got, expected)
    assert counting.graphs <= MOST_COMPILATIONS


ALL = tables()
NAMED = [table for table in ALL if len(table) == 1]


@pytest.mark.parametrize("table", NAMED, ids=map(table_id, NAMED))
def test_loss_is_one_graph_for_all_lengths(table: Table) -> None:
    check_all_lengths(Objective(loss=titanrl.build("loss", table)), run_eagerly)


@pytest.mark.sweep
@pytest.mark.parametrize("table", ALL, ids=map(table_id, ALL))
def test_compiled_loss_equals_eager(table: Table) -> None:
    check_all_lengths(Objective(loss=titanrl.build("loss", table)), run_compiled)


def test_compiled_objective_equals_eager() -> None:
    loss = titanrl.build("loss", {"name": "ppo_clip", "dual_clip": 2.0})
    kl = titanrl.build("kl", {"name": "k3", "gradient": "straight_through_k2"})
    check_all_lengths(Objective(loss=loss, kl=kl, importance_weight=True, entropy=True), run_compiled)


def float_fields() -> list[tuple[str, str]]:
    """Returns (loss, field) for each float field with a default."""
    return [
        (name, field.name)
        for name in titanrl.names("loss")
        for field in dataclasses.fields(titanrl.build("loss", {"name": name}))
        if isinstance(field.default, float)
    ]


def check_fresh_floats(name: str, field: str, factors: tuple[float, ...] = (1.0, 0.5, 0.9, 1.0)) -> None:
    """Compiles the loss with several values of a field, there and back; each must give what eager gives."""
    default = getattr(titanrl.build("loss", {"name": name}), field)
    for factor in factors:
        try:
            loss = titanrl.build("loss", {"name": name, field: factor * default if default else factor - 0.5})
        except titanrl.ConfigError:
            continue
        objective = Objective(loss=loss)
        fast = compiled(objective)
        for length in (16, 24):
            policy, batch = float32(4, length)
            for got, expected in zip(run(fast, policy, batch), run(objective, policy, batch), strict=True):
                assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_compiled_loss_follows_its_floats() -> None:
    torch._dynamo.reset()
    check_fresh_floats("ppo_clip", "clip_high", factors=(1.0, 0.5))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "field"), float_fields())
def test_compiled_loss_follows_each_float_field(name: str, field: str) -> None:
    torch._dynamo.reset()
    check_fresh_floats(name, field)


SCRIPT = """
import sys, torch, titanrl
from tests.laws.test_loss_compiles import float32, run
from titanrl.algorithm.objective import Objective, compiled
objective = Objective(loss=titanrl.build("loss", {"name": "ppo_clip", "clip_high": float(sys.argv[1])}))
fast = compiled(objective)
for length in (16, 24):
    policy, batch = float32(4, length)
    for got, expected in zip(run(fast, policy, batch), run(objective, policy, batch), strict=True):
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_loss_follows_its_floats_across_processes(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for clip_high in ("0.2", "0.5"):
        subprocess.run([sys.executable, "-c", SCRIPT, clip_high], check=True, cwd=ROOT)
