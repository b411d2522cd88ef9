"""How processes become ranks: the torchrun command, and Slurm's variables in torch.distributed's words."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

__all__ = ["first_host", "launched", "slurm_environment", "torchrun"]


def torchrun(num_processes: int, arguments: Sequence[str]) -> list[str]:
    """Returns the command that runs ``titanrl <arguments>`` as so many ranks of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={num_processes}", "-m", "titanrl", *arguments]


def launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has made this process a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what torch.distributed wants to know, where srun started this process; else nothing.

    Only srun sets ``SLURM_STEP_NUM_TASKS``: the batch script itself, which also has SLURM_PROCID, is no rank.
    """
    if launched(environment) or "SLURM_STEP_NUM_TASKS" not in environment:
        return {}
    if environment["SLURM_STEP_NUM_TASKS"] == "1":
        return {}
    job = int(environment["SLURM_JOB_ID"])
    found = {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        # Steps of different jobs may share a node, so the port follows from the job.
        "MASTER_PORT": str(20000 + job % 20000),
    }
    return {key: value for key, value in found.items() if key not in environment}


def first_host(nodes: str) -> str:
    """Returns the first host of a Slurm node list: ``gpu[003-007,9]`` gives ``gpu003``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST must be a Slurm node list, got {nodes!r}.")
    prefix, first, suffix = match.groups(default="")
    return f"{prefix}{first}{suffix}"
