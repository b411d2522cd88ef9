"""The launch of ranks: the torchrun command, and torch.distributed's variables from Slurm's."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

__all__ = ["first_host", "launched", "slurm_environment", "torchrun"]


def torchrun(num_processes: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs ``titanrl <arguments>`` as ranks on this machine.

    Args:
        num_processes: number of ranks.
        arguments: the command line after ``titanrl``.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={num_processes}", "-m", "titanrl", *arguments]


def launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process as a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch.distributed needs if srun started this process; else an empty dict.

    Only srun sets ``SLURM_STEP_NUM_TASKS``. The batch script itself also has SLURM_PROCID but is not a rank.

    Args:
        environment: the variables of this process; those that torch.distributed already has are left out.
    """
    if launched(environment) or "SLURM_STEP_NUM_TASKS" not in environment:
        return {}
    if environment["SLURM_STEP_NUM_TASKS"] == "1":
        return {}
    job = int(environment["SLURM_JOB_ID"])
    variables = {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        # Steps of different jobs may share a node, so the port depends on the job.
        "MASTER_PORT": str(20000 + job % 20000),
    }
    return {key: value for key, value in variables.items() if key not in environment}


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: ``gpu[003-007,9]`` gives ``gpu003``.

    Raises:
        ValueError: the text is not a node list.
    """
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST must be a Slurm node list, got {nodes!r}.")
    prefix, first, suffix = match.groups(default="")
    return f"{prefix}{first}{suffix}"
