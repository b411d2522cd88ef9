"""``titanrl rft``: create training data by rejection sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, stoppable, supervised, world_size
from titanrl.cli.train import FILE, SET
from titanrl.preflight.verify import load_checked

__all__ = ["rft"]


@supervised
def rft(
    file: FILE,
    output: Annotated[
        Path,
        typer.Option(
            "--output", help="Folder of the data; an interrupted one is resumed.", show_default=False
        ),
    ],
    overrides: SET = None,
    nproc: NPROC = 1,
) -> None:
    """Rejection sampling: sample responses to [prompts], score them, and write those that [rft] selects."""
    overrides = overrides or []
    experiment = load_checked(file, overrides, world_size(nproc))
    become_ranks(nproc, ["rft", str(file), f"--output={output}", *(f"--set={each}" for each in overrides)])
    with stoppable(experiment.run.stop_seconds, experiment.run.stall_seconds):
        from titanrl.rollout.rejection_sampling import collect

        collect(experiment, output)
