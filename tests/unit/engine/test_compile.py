"""Compiled objectives: the same values as eager ones, and never a stale float."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import titanrl
from tests.unit.engine.conftest import make_batch, with_old
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Compile
from titanrl.engine import Engine

COMPILED = Compile(enable=True, components=("loss",))


@pytest.mark.slow
def test_compiled_update_follows_every_float_and_equals_eager(make_engine: Callable[..., Engine]) -> None:
    eager, compiled = make_engine(), make_engine(compile=COMPILED)
    clipped = []
    for clip_high in (0.2, 0.5, 0.9, 0.2):
        loss = titanrl.build("loss", {"name": "ppo_clip", "clip_high": clip_high})
        objective = Objective(loss=loss, kl=titanrl.build("kl", {"name": "k3"}))
        for seed in (0, 1):
            batch = with_old(make_batch(seed), eager)
            # Ratios from 1 to e, so that each bound clips a different fraction of them.
            offset = torch.rand(batch["labels"].shape, generator=torch.Generator().manual_seed(seed))
            batch["old_logprob"] = batch["old_logprob"] - offset * batch["loss_mask"]
            left = eager.update(batch, objective, (0.1, 0.0))
            right = compiled.update(batch, objective, (0.1, 0.0))
            assert left.keys() == right.keys()
            for name, (value, count) in left.items():
                assert right[name][1] == count
                assert right[name][0] == pytest.approx(value, rel=1e-3, abs=1e-4), (name, clip_high, seed)
            clipped.append(left["loss/clip_fraction"][0])
    assert len(set(clipped[:6])) == 6


@pytest.mark.slow
def test_twelve_steps_of_changing_sizes_compile_each_function_at_most_twice(
    make_engine: Callable[..., Engine], objective: Objective
) -> None:
    """The objective and the head's two kernels; lengths, micro-batches and coefficients change every step."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.register_backend(counted, name="counted")
    compile = Compile(enable=True, components=("loss",), backend="counted")
    engine = make_engine(compile=compile, training={"max_tokens_per_microbatch": 60})
    for step in range(12):
        rows = make_batch(step, 40 + step % 8)[: 9 - 2 * (step % 2)]
        engine.update(with_old(rows, engine), objective, (0.1 * step, 0.0))
    assert 3 <= len(graphs) <= 6


@pytest.mark.slow
def test_compiled_blocks_are_two_graphs_over_changing_lengths(
    make_engine: Callable[..., Engine], objective: Objective
) -> None:
    """Attention is one operation in the compiled layers, whatever prefixes the rows share."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    eager = make_engine()
    blocks = make_engine(compile=Compile(enable=True, components=("model",), backend="aot_eager"))
    for seed in range(4):
        batch = with_old(make_batch(seed), eager)
        left, right = (engine.update(batch, objective, (0.1, 0.0)) for engine in (eager, blocks))
        assert right["update/grad_norm"][0] == pytest.approx(left["update/grad_norm"][0], rel=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_kernels_are_compiled_with_their_floats() -> None:
    """tests/laws/test_loss_compiles.py shows the failure otherwise, in one process and across two."""
    assert torch._dynamo.config.specialize_float
