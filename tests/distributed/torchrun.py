"""Runs a worker script under torchrun and reads the results of its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["launch", "train_on_ranks"]

ROOT = Path(__file__).parents[2]
RUNS_WORKER = Path(__file__).parent / "runs_worker.py"


def launch(worker: Path, folder: Path, processes: int, *, timeout_seconds: float) -> list[Any]:
    """Returns the contents of FOLDER/rank-<r>.pt, written by each rank of ``worker FOLDER``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    done = subprocess.run(
        [*command, str(worker), str(folder)],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(processes)]


def train_on_ranks(
    folder: Path,
    processes: int,
    runs: Mapping[str, tuple[Path, Sequence[str]]],
    *,
    timeout_seconds: float = 280,
) -> dict[str, Path]:
    """Trains experiments one after the other in one torchrun, and returns their run folders.

    Args:
        folder: made for the results of the ranks.
        processes: number of ranks.
        runs: name of the run -> experiment file and overrides.
        timeout_seconds: of all runs together.
    """
    folder.mkdir()
    table = {name: [str(file), [*overrides, f"run.name={name}"]] for name, (file, overrides) in runs.items()}
    (folder / "runs.json").write_text(json.dumps(table))
    found = launch(RUNS_WORKER, folder, processes, timeout_seconds=timeout_seconds)
    assert all(each == found[0] for each in found)
    return {name: Path(run) for name, run in found[0].items()}
