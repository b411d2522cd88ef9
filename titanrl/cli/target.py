"""Target of a command: a run, by its newest checkpoint, or the model that an experiment file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from titanrl.config import load
from titanrl.config.dump import inline
from titanrl.errors import ConfigError
from titanrl.report.folder import RunFolder

__all__ = ["MODEL", "STEP", "TARGET", "Target", "resolve_target"]

TARGET = Annotated[Path, typer.Argument(help="Experiment file (TOML) or run folder.", show_default=False)]

MODEL = Annotated[
    Path | None,
    typer.Option(
        "--model", help="Model or run folder to use instead of the target's model.", show_default=False
    ),
]

STEP = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="NUMBER|best",
        help="Checkpoint of the run; best: by [checkpoint] keep_best. Default: the newest whole one.",
        show_default=False,
    ),
]


class Target(NamedTuple):
    """Settings and weights that a command works on."""

    file: Path
    """The experiment file; of a run, the resolved one."""
    overrides: list[str]
    """Overrides of the file: the model's path, then the user's own."""
    run: Path | None
    """Run folder whose checkpoint holds the weights; None: [model] path holds them."""
    step: str | None = None
    """The checkpoint; None: the newest whole one."""


def resolve_target(
    target: Path, model: Path | None, overrides: list[str] | None, step: str | None = None
) -> Target:
    """Return the settings and the weights that a target names.

    Args:
        target: experiment file or run folder.
        model: model or run folder that replaces the target's own model.
        overrides: the user's overrides.
        step: checkpoint of the run; None: the newest whole one.

    Raises:
        ConfigError: the file of the run named by ``model`` cannot be read, or a checkpoint is chosen although
            no run is named.
    """
    file, weights = target, model
    if target.is_dir():
        file, weights = RunFolder(target).config, model or target
    run = weights if weights is not None and RunFolder(weights).config.is_file() else None
    if step is not None and run is None:
        raise ConfigError(f"--step {step} names a checkpoint, but no run folder is given; drop it.")
    model_override = []
    if weights is not None:
        path = weights if run is None else load(RunFolder(run).config).model.path
        model_override = [f"model.path={inline(str(path))}"]
    return Target(file, [*model_override, *(overrides or [])], run, step)
