"""What a command works on: a run by its newest checkpoint, or the model that an experiment file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from titanrl.config import load
from titanrl.config.dump import inline
from titanrl.report.folder import RunFolder

__all__ = ["MODEL", "TARGET", "Target", "target_of"]

TARGET = Annotated[Path, typer.Argument(help="Experiment file (TOML) or run folder.", show_default=False)]

MODEL = Annotated[
    Path | None,
    typer.Option(
        "--model", help="Model or run folder to take instead of the target's model.", show_default=False
    ),
]


class Target(NamedTuple):
    """Whose settings, and whose weights."""

    file: Path
    """The experiment file, of a run the resolved one."""
    overrides: list[str]
    """To be laid over it: the model's path, then what the user said."""
    run: Path | None
    """Run folder whose newest checkpoint has the weights; None: [model] path has them."""


def target_of(target: Path, model: Path | None, overrides: list[str] | None) -> Target:
    """Returns what ``target``, a file or a run folder, stands for.

    Args:
        model: model folder or run folder in the place of the target's own model. overrides: the user's.

    Raises:
        ConfigError: the run named by ``model`` has an unreadable file.
    """
    file, named = target, model
    if target.is_dir():
        file, named = RunFolder(target).config, model or target
    run = named if named is not None and RunFolder(named).config.is_file() else None
    replaced = []
    if named is not None:
        path = named if run is None else load(RunFolder(run).config).model.path
        replaced = [f"model.path={inline(str(path))}"]
    return Target(file, [*replaced, *(overrides or [])], run)
