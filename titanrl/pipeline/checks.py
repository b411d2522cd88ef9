"""What keeps the stages of a pipeline from running on this machine, told before the first one runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from titanrl.errors import ConfigError, Problem
from titanrl.verify import verify

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.pipeline.settings import Pipeline

__all__ = ["check_pipeline"]

MODELS = ("model", "reference", "teacher", "critic")


def check_pipeline(pipeline: Pipeline, folder: Path, world_size: int | None = None) -> None:
    """Refuses a pipeline of which a stage, or the judge, cannot run here.

    A model that a stage has yet to make is taken to be like the one that the stage trains; a reward model
    that has yet to be made is looked at when its turn comes.

    Args:
        folder: of the pipeline's run. world_size: as for ``verify``.

    Raises:
        ConfigError: with every mistake of every stage.
    """
    like: dict[str, str] = {}
    told = []
    for stage in pipeline.stage:
        experiment = _seen(pipeline.experiment(stage, folder), like)
        if problems := _known(verify(experiment, world_size), experiment, like):
            told.append(f"stage {stage.name!r}: {ConfigError(problems, file=stage.file)}")
        if stage.kind == "train":
            like[str(pipeline.output(stage, "model", folder))] = experiment.model.path
    if pipeline.evaluate is not None:
        judge = pipeline.judge(pipeline.experiment(pipeline.stage[0], folder).model.path)
        if problems := verify(judge, world_size):
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


def _known(problems: list[Problem], experiment: Experiment, like: Mapping[str, str]) -> list[Problem]:
    """Returns the problems without those of reward models yet to be made."""
    paths = [getattr(each.component, "path", None) for each in experiment.reward]
    awaited = [(f"reward.{i}", "path") for i, path in enumerate(paths) if _is_awaited(path, like)]
    return [each for each in problems if (each.where, each.key) not in awaited]


def _is_awaited(path: str | None, like: Mapping[str, str]) -> bool:
    return path is not None and path in like and not Path(path).exists()
