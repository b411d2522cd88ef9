"""``titanrl train``: run an experiment on one process, on several, or as one rank of a launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, stoppable, supervised, world_size
from titanrl.preflight.verify import load_checked

__all__ = ["FILE", "SET", "train"]

FILE = Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. optimizer.lr=1e-5; an empty value removes the key.",
    ),
]


@supervised
def train(
    file: FILE,
    overrides: SET = None,
    nproc: NPROC = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the newest run of the same name.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="KEY",
            help="With --resume: accept a changed key or table that changes what the run measures, e.g. "
            "optimizer.lr; `all` accepts every possible change.",
        ),
    ] = None,
) -> None:
    """Run an experiment. --nproc > 1 starts the ranks; under torchrun or srun this process is one rank."""
    overrides = overrides or []
    experiment = load_checked(file, overrides, world_size(nproc))
    sets = [f"--set={each}" for each in overrides]
    accept = accept or []
    accepts = [f"--accept={each}" for each in accept]
    become_ranks(nproc, ["train", str(file), *sets, *(["--resume"] if resume else []), *accepts])
    with stoppable(experiment.run.stop_seconds, experiment.run.stall_seconds):
        from titanrl.training.run import train as run

        run(experiment, resume=resume, accept=accept)
