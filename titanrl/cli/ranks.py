"""Ranks of a command: a single process, processes that the command starts, or one process of a launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from titanrl.errors import ConfigError
from titanrl.runtime.launch import launched, slurm_environment, torchrun
from titanrl.runtime.lazy import lazy_torch

__all__ = ["NPROC", "become_ranks", "world_size"]

NPROC = Annotated[int, typer.Option(min=1, help="Number of processes on this machine.")]


def world_size(nproc: int) -> int:
    """Return the number of processes that run this command, including those that ``nproc`` will start.

    Raises:
        ConfigError: a launcher has started processes already, and ``nproc`` requests more.
    """
    os.environ.update(slurm_environment(os.environ))
    is_rank = launched(os.environ)
    if nproc > 1:
        lazy_torch()  # This process only checks the file and becomes torchrun.
    if is_rank and nproc > 1:
        raise ConfigError(
            f"--nproc must not be given under a launcher that has started {os.environ['WORLD_SIZE']} "
            f"processes already, got {nproc}; remove it."
        )
    return int(os.environ["WORLD_SIZE"]) if is_rank else nproc


def become_ranks(nproc: int, arguments: Sequence[str]) -> None:
    """Replace this process by torchrun with ``nproc`` ranks; return if one process is enough.

    Args:
        nproc: number of ranks.
        arguments: arguments of ``titanrl`` on each rank.
    """
    if nproc == 1:
        return
    command = torchrun(nproc, arguments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // nproc, 1)))
    sys.stdout.flush()
    os.execv(command[0], command)
