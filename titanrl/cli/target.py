"""Target of a command: a run, by its newest checkpoint, or the model that an experiment file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from titanrl.config import load
from titanrl.config.dump import inline
from titanrl.report.folder import RunFolder

__all__ = ["MODEL", "TARGET", "Target", "resolve_target"]

TARGET = Annotated[Path, typer.Argument(help="Experiment file (TOML) or run folder.", show_default=False)]

MODEL = Annotated[
    Path | None,
    typer.Option(
        "--model", help="Model or run folder to use instead of the target's model.", show_default=False
    ),
]


class Target(NamedTuple):
    """Settings and weights that a command works on."""

    file: Path
    """The experiment file; of a run, the resolved one."""
    overrides: list[str]
    """Overrides of the file: the model's path, then the user's own."""
    run: Path | None
    """Run folder whose newest checkpoint holds the weights; None: [model] path holds them."""


def resolve_target(target: Path, model: Path | None, overrides: list[str] | None) -> Target:
    """Return the settings and the weights that a target names.

    Args:
        target: experiment file or run folder.
        model: model or run folder that replaces the target's own model.
        overrides: the user's overrides.

    Raises:
        ConfigError: the file of the run named by ``model`` cannot be read.
    """
    file, weights = target, model
    if target.is_dir():
        file, weights = RunFolder(target).config, model or target
    run = weights if weights is not None and RunFolder(weights).config.is_file() else None
    model_override = []
    if weights is not None:
        path = weights if run is None else load(RunFolder(run).config).model.path
        model_override = [f"model.path={inline(str(path))}"]
    return Target(file, [*model_override, *(overrides or [])], run)
