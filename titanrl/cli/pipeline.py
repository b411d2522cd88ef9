"""``titanrl pipeline``: several experiments one after the other, each on what earlier ones left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, world_size
from titanrl.recipes.checks import check_pipeline
from titanrl.recipes.settings import load_pipeline

__all__ = ["folder_of", "pipeline"]


def folder_of(file: Path) -> Path:
    """Returns where the stages of a pipeline go unless --to says where."""
    return Path("runs") / f"{file.stem}-pipeline"


def pipeline(
    file: Annotated[Path, typer.Argument(help="Pipeline file (TOML).", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Folder of all stages; runs/NAME-pipeline if omitted.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STAGE.KEY=VALUE", help="Lay a.b.c=value over the stage's experiment."),
    ] = None,
    nproc: NPROC = 1,
) -> None:
    """Run the stages of a pipeline; called again, carry on at the stage that did not end."""
    overrides, ranks = overrides or [], world_size(nproc)
    folder = folder_of(file) if to is None else to
    loaded = load_pipeline(file, folder, overrides)
    check_pipeline(loaded, folder, ranks)
    become_ranks(nproc, ["pipeline", str(file), f"--to={folder}", *(f"--set={each}" for each in overrides)])
    from titanrl.recipes.run import run_recipe

    run_recipe(loaded, folder, rank=int(os.environ.get("RANK", "0")), world_size=ranks, say=typer.echo)
