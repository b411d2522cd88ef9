"""Compiled objectives: the same numbers as eager ones, and never a stale float."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import titanrl
from tests.unit.engine.conftest import make_batch, with_old
from titanrl.config.engine_tables import Compile
from titanrl.engine import Engine
from titanrl.objective import Objective

COMPILED = Compile(enable=True, components=("loss",))

SECOND_PROCESS = """
import sys, torch, titanrl, titanrl.engine
from titanrl.objective import Objective
from titanrl.protocols import PolicyOutputs
from tensordict import TensorDict
clip = float(sys.argv[1])
generator = torch.Generator().manual_seed(0)
logprob, old, advantage = (torch.randn(4, 16, generator=generator) for _ in range(3))
mask = torch.ones(4, 16, dtype=torch.bool)
batch = TensorDict({"old_logprob": old, "advantage": advantage}, [4])
batch.update({"loss_mask": mask, "loss_weight": mask / 64.0})
objective = Objective(loss=titanrl.build("loss", {"name": "ppo_clip", "clip_high": clip}))
totals = []
for function in (objective, torch.compile(objective.__call__, fullgraph=True, dynamic=True)):
    x = logprob.clone().requires_grad_()
    total, _ = function(PolicyOutputs(logprob=x), batch, torch.zeros(2))
    total.backward()
    totals.append((float(total), float(x.grad.sum())))
print(*totals[0], *totals[1])
"""


@pytest.mark.slow
def test_compiled_update_follows_every_float_and_equals_eager(make_engine: Callable[..., Engine]) -> None:
    eager, compiled = make_engine(), make_engine(compile=COMPILED)
    clipped = []
    for clip_high in (0.2, 0.5, 0.9, 0.2):
        loss = titanrl.build("loss", {"name": "ppo_clip", "clip_high": clip_high})
        objective = Objective(loss=loss, kl=titanrl.build("kl", {"name": "k3"}))
        for seed in (0, 1):
            batch = with_old(make_batch(seed), eager)
            # Ratios from 1 to e, so that each bound clips another share of them.
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
def test_second_process_does_not_inherit_the_first_ones_float(tmp_path: Path) -> None:
    seen = []
    for clip in ("0.3", "0.9"):
        command = [sys.executable, "-c", SECOND_PROCESS, clip]
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | environment, timeout=280
        )
        eager_total, eager_sum, total, gradient_sum = map(float, done.stdout.split())
        assert total == pytest.approx(eager_total, rel=1e-5)
        assert gradient_sum == pytest.approx(eager_sum, rel=1e-5)
        seen.append(total)
    assert seen[0] != seen[1]
    assert torch.tensor(seen).isfinite().all()
