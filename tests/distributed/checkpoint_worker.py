"""Loads checkpoints on several meshes, saves them there, and resumes a run that one process began.

Usage: checkpoint_worker.py FOLDER: holds cases.json, gets rank-<r>.pt: {name of a checkpoint: its state}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import titanrl
import titanrl.engine
from tests.distributed.batches import LENGTH, answers, deal
from titanrl.algorithm.objective import Objective
from titanrl.config import load
from titanrl.config.engine_tables import Checkpoint, LRScheduler, Optimizer, Parallelism, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.report import recorder
from titanrl.training.run import train

__all__ = ["MESHES", "full_state", "make_engine", "update"]

MESHES = {
    "fsdp": {"data_parallel_shard_degree": 2},
    "tensor": {"tensor_parallel_degree": 2},
    "pipeline": {"pipeline_parallel_degree": 2},
}
"""Name -> [parallelism] of two processes."""
ROUTE = [("one", "fsdp"), ("fsdp", "tensor"), ("tensor", "pipeline"), ("pipeline", "fsdp")]
"""(checkpoint that is loaded, mesh that loads it)."""


class Counter:
    """The state of a training loop: a number that differs between ranks, and one that does not."""

    def __init__(self, rank: int) -> None:
        self.step, self.seen = 0, rank

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "parts": {"seen": self.seen}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.seen = state_dict["step"], state_dict["parts"]["seen"]


def make_engine(
    model: str, folder: Path, parallelism: dict[str, int], **table: Any
) -> tuple[Engine, Counter]:
    """Returns an engine in float32 with its checkpoints in ``folder``, and the state of its loop."""
    counter = Counter(int(os.environ.get("RANK", "0")))
    config = EngineConfig(
        model=model,
        steps=10,
        training=Training(seq_len=LENGTH + 1, max_tokens_per_microbatch=64, mixed_precision_param="float32"),
        optimizer=Optimizer(lr=1e-3, eps=1e-3),
        lr_scheduler=LRScheduler(warmup_steps=6),
        parallelism=Parallelism(**parallelism),
        checkpoint=Checkpoint(interval=1, keep_latest_k=0, **table),
    )
    return Engine(config, state=counter, checkpoints=folder), counter


def update(engine: Engine, counter: Counter) -> None:
    """Makes one optimizer step on a batch that is a function of the step."""
    rows = deal(answers(counter.step), engine.dp_rank, engine.dp_degree)
    engine.update(rows, Objective(loss=titanrl.build("loss", {"name": "ppo_clip"})), (0.0, 0.0))
    counter.step += 1


def full_state(engine: Engine, counter: Counter) -> dict[str, Any]:
    """Returns the weights on every rank, and of this rank's parameters the optimizer's state in full."""
    learner = engine.policy
    state = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in learner.optimizers.state_dict().items()
        if name.startswith("state.")
    }
    return {
        "weights": {name: value.clone() for name, value in engine.weights()},
        "optimizer": {name: value.clone() for name, value in state.items()},
        "schedule": learner.schedule.schedulers.state_dict(),
        "loop": counter.state_dict(),
    }


def main(folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    states = {}
    for source, name in ROUTE:
        target = folder / f"{source}-{name}"
        if os.environ["RANK"] == "0":
            shutil.copytree(folder / source, target)
        titanrl.engine.collectives.broadcast_object(None)
        engine, counter = make_engine(cases["model"], target, MESHES[name], async_mode=cases["mode"])
        assert engine.load(), source
        states[target.name] = full_state(engine, counter)
        engine.save(counter.step + 1, last=True)
        update(engine, counter)
        states[target.name]["next"] = {key: value.clone() for key, value in engine.weights()}
        engine.close()
        if not (folder / name).exists() and os.environ["RANK"] == "0":
            shutil.copytree(target / f"step-{counter.step}", folder / name / f"step-{counter.step}")
        titanrl.engine.collectives.broadcast_object(None)
    states["run"] = str(
        train(load(cases["experiment"], ["parallelism.tensor_parallel_degree=2"]), resume=True)
    )
    torch.save(states, folder / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    import titanrl.engine.collectives

    titanrl.engine.set_threads = lambda: torch.set_num_threads(1) or 1
    torch.set_num_threads(1)
    recorder.plot = lambda *_: None  # Drawing takes longer than the training.
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
