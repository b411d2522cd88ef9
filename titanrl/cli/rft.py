"""``titanrl rft``: training data of a model's own good answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, world_size
from titanrl.cli.train import FILE, SET
from titanrl.preflight.verify import load_checked

__all__ = ["rft"]


def rft(
    file: FILE,
    to: Annotated[
        Path, typer.Option("--to", help="Folder of the data; made or carried on.", show_default=False)
    ],
    overrides: SET = None,
    nproc: NPROC = 1,
) -> None:
    """Rejection sampling: sample answers to [prompts], judge them, write those that [rft] keeps."""
    overrides = overrides or []
    experiment = load_checked(file, overrides, world_size(nproc))
    become_ranks(nproc, ["rft", str(file), f"--to={to}", *(f"--set={each}" for each in overrides)])
    from titanrl.rollout.rejection_sampling import collect

    collect(experiment, to)
