"""``titanrl recipe``: run several experiments in sequence, each using the outputs of earlier ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.ranks import NPROC, become_ranks, stoppable, supervised, world_size
from titanrl.recipes.checks import check_recipe
from titanrl.recipes.settings import load_recipe

__all__ = ["default_folder", "recipe"]


def default_folder(file: Path) -> Path:
    """Return the folder of a recipe's stages if ``--output`` is not given."""
    return Path("runs") / f"{file.stem}-recipe"


@supervised
def recipe(
    file: Annotated[Path, typer.Argument(help="Recipe file (TOML).", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Folder of all stages. Default: runs/NAME-recipe.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="STAGE.KEY=VALUE",
            help="Override a key of one stage, e.g. sft.optimizer.lr=1e-5; an empty value removes the key.",
        ),
    ] = None,
    nproc: NPROC = 1,
) -> None:
    """Run the stages of a recipe. If interrupted, run again to resume at the first unfinished stage."""
    overrides, ranks = overrides or [], world_size(nproc)
    folder = default_folder(file) if output is None else output
    loaded = load_recipe(file, folder, overrides)
    check_recipe(loaded, folder, ranks)
    become_ranks(nproc, ["recipe", str(file), f"--output={folder}", *(f"--set={each}" for each in overrides)])
    settings = loaded.experiment(loaded.stage[0], folder).run
    with stoppable(settings.stop_seconds, settings.stall_seconds):
        from titanrl.recipes.run import run_recipe

        run_recipe(loaded, folder, rank=int(os.environ.get("RANK", "0")), world_size=ranks, log=typer.echo)
