"""What keeps the stages of a pipeline from running on this machine, told before the first one runs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from titanrl.errors import ConfigError, Problem
from titanrl.preflight.verify import preflight

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.recipes.settings import Pipeline

__all__ = ["check_pipeline"]

MODELS = ("model", "reference", "teacher", "critic")


def check_pipeline(pipeline: Pipeline, folder: Path, world_size: int | None = None) -> None:
    """Refuses a pipeline of which a stage, or the judge, cannot run here.

    A model that a stage has yet to make is taken to be like the one that the stage trains; reward
    models and rows that have yet to be made are looked at when their turn comes.

    Args:
        folder: of the pipeline's run. world_size: as for ``preflight``.

    Raises:
        ConfigError: with every mistake of every stage.
    """
    like: dict[str, str] = {}
    rows: set[str] = set()
    told = []
    for stage in pipeline.stage:
        experiment = _seen(pipeline.experiment(stage, folder), like)
        if problems := _known(preflight(experiment, world_size), experiment, {*like, *rows}):
            told.append(f"stage {stage.name!r}: {ConfigError(problems, file=stage.file)}")
        if stage.kind == "train":
            like[str(pipeline.output(stage, "model", folder))] = experiment.model.path
        else:
            rows.add(str(pipeline.output(stage, "data", folder)))
    if pipeline.evaluate is not None:
        judge = pipeline.judge(pipeline.experiment(pipeline.stage[0], folder).model.path)
        if problems := preflight(judge, world_size):
            told.append(f"evaluate: {ConfigError(problems, file=pipeline.evaluate)}")
    if told:
        raise ConfigError("\n".join(told))


def _seen(experiment: Experiment, like: Mapping[str, str]) -> Experiment:
    """Returns the experiment with models that exist in place of those yet to be made."""
    changed = {}
    for name in MODELS:
        table = getattr(experiment, name)
        if table is not None and _is_awaited(table.path, like):
            changed[name] = replace(table, path=like[table.path])
    return replace(experiment, **changed)


def _known(problems: list[Problem], experiment: Experiment, made: Container[str]) -> list[Problem]:
    """Returns the problems without those of reward models and rows yet to be made."""
    parts: dict[str, object] = {f"reward.{i}": each.component for i, each in enumerate(experiment.reward)}
    parts |= experiment.sources()
    awaited = [where for where, part in parts.items() if _is_awaited(getattr(part, "path", None), made)]
    return [each for each in problems if not (each.key == "path" and each.where in awaited)]


def _is_awaited(path: str | None, made: Container[str]) -> bool:
    return path is not None and path in made and not Path(path).exists()
