"""Memory over a run: memory of a process after 100 steps relative to 150 steps, on the tiny model.

Caches are full by then. A growing list, a metric that keeps its graph, or a handle that is not closed gives a
ratio below one. Run: ``make bench ONLY=memory``.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.timing import live_tensors
from titanrl.config import load
from titanrl.data.prompts import training_prompts
from titanrl.engine import init_distributed
from titanrl.models import tiny
from titanrl.training.online import train_step
from titanrl.training.run import StageTimer
from titanrl.training.session import open_session
from titanrl.training.stages import sync

FILE = Path(__file__).parents[1] / "experiments" / "tiny_grpo.toml"
EARLY, LATE = 100, 150


def held() -> dict[str, int]:
    """Returns the number of tensors, their bytes and the number of open files of this process."""
    import torch

    tensors = live_tensors(torch.Tensor, torch.nn.Parameter)
    size = sum(each.untyped_storage().nbytes() for each in tensors)
    return {"tensors": len(tensors), "bytes": size, "files": len(os.listdir("/proc/self/fd"))}


def test_step_memory_does_not_grow(tmp_path: Path, benchmark: Any) -> None:
    model = tiny.create(tmp_path / "model", context=256)
    sizes = ["loop.steps=200", "prompts.size=4096"]
    experiment = load(FILE, [f"model.path={model}", f"run.folder={tmp_path}", *sizes])
    init_distributed()
    seen = {}
    with closing(open_session(experiment, tmp_path / "run", training_prompts, resume=False)) as session:
        sync(session, version=0)
        for step in range(LATE):
            train_step(session, step, StageTimer())
            session.state.step = step + 1
            sync(session, version=step + 1)
            if step + 1 in (EARLY, LATE):
                seen[step + 1] = held()
    benchmark.extra_info.update(
        held=seen, ratio={f"step {EARLY}": seen[EARLY]["bytes"] / seen[LATE]["bytes"]}, dtype="float32"
    )
    benchmark.pedantic(lambda: None, rounds=1)
    assert seen[LATE]["files"] <= seen[EARLY]["files"], seen
    assert seen[LATE]["tensors"] <= seen[EARLY]["tensors"], seen
    assert seen[LATE]["bytes"] == pytest.approx(seen[EARLY]["bytes"], rel=0.02), seen
