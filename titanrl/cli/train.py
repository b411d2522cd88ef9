"""``titanrl train``: one process, several that it starts itself, or one of those that a launcher started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from titanrl.config import load
from titanrl.errors import ConfigError
from titanrl.launch import launched, slurm_environment, torchrun
from titanrl.lazy import lazy_torch
from titanrl.verify import verify

__all__ = ["FILE", "SET", "train"]

FILE = Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Lay a.b.c=value over the file; an empty value drops it."
    ),
]


def train(
    file: FILE,
    overrides: SET = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on with the newest run of that name.")
    ] = False,
) -> None:
    """Run an experiment. Starts torchrun itself for --nproc > 1; under torchrun or srun it is one rank."""
    overrides = overrides or []
    os.environ.update(slurm_environment(os.environ))
    is_rank = launched(os.environ)
    if nproc > 1:
        lazy_torch()  # This process only checks the file and becomes torchrun.
    if is_rank and nproc > 1:
        raise ConfigError(
            f"--nproc must not be given under a launcher that has started {os.environ['WORLD_SIZE']} "
            f"processes already, got {nproc}; drop it."
        )
    experiment = load(file, overrides)
    world_size = int(os.environ["WORLD_SIZE"]) if is_rank else nproc
    if problems := verify(experiment, world_size):
        raise ConfigError(problems, file=str(file))
    if nproc > 1:
        arguments = [
            "train",
            str(file),
            *(f"--set={each}" for each in overrides),
            *["--resume"][: int(resume)],
        ]
        command = torchrun(nproc, arguments)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // nproc, 1)))
        sys.stdout.flush()
        os.execv(command[0], command)
    from titanrl.loop.loop import train as run

    run(experiment, resume=resume)
