"""``titanrl train``: one process, several that it starts itself, or one of those that a launcher started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, world_size
from titanrl.preflight.verify import load_checked

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
    nproc: NPROC = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on with the newest run of that name.")
    ] = False,
) -> None:
    """Run an experiment. Starts torchrun itself for --nproc > 1; under torchrun or srun it is one rank."""
    overrides = overrides or []
    experiment = load_checked(file, overrides, world_size(nproc))
    sets = [f"--set={each}" for each in overrides]
    become_ranks(nproc, ["train", str(file), *sets, *["--resume"][: int(resume)]])
    from titanrl.training.run import train as run

    run(experiment, resume=resume)
