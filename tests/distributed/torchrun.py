"""Runs a worker script under torchrun and reads the results of its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["launch"]

ROOT = Path(__file__).parents[2]


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
