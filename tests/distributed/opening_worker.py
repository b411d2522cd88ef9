"""One rank of test_opening: opens a new run, and resumes that are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from titanrl.config import load
from titanrl.engine import init_distributed
from titanrl.errors import ConfigError
from titanrl.training.opening import open_run


def refusal(folder: Path, overrides: list[str]) -> str:
    """Returns this rank's error of a resume."""
    try:
        with open_run(load(folder / "grpo.toml", overrides), resume=True):
            return ""
    except ConfigError as error:
        return str(error)


def main(folder: Path) -> None:
    init_distributed()
    results = {}
    with open_run(load(folder / "grpo.toml"), resume=False) as opened:
        results["path"] = str(opened.folder.path)
        results["in use"] = refusal(folder, [])
    results["no checkpoint"] = refusal(folder, [])
    torch.save(results, folder / f"rank-{dist.get_rank()}.pt")
    dist.destroy_process_group()


main(Path(sys.argv[1]))
