"""Checks that the stages of a recipe can run on this machine, made before the first stage runs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from titanrl.errors import ConfigError, Problem
from titanrl.preflight.verify import preflight

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.recipes.settings import Recipe

__all__ = ["check_recipe"]

MODELS = ("model", "reference", "teacher", "critic")


def check_recipe(recipe: Recipe, folder: Path, world_size: int | None = None) -> None:
    """Check that every stage of a recipe, and its evaluation, can run on this machine.

    The model that a stage will train is assumed to have the architecture of the stage's initial model. Reward
    models and data files that do not exist yet are checked when their stage runs.

    Args:
        recipe: the recipe.
        folder: folder of the recipe's run.
        world_size: as for ``preflight``.

    Raises:
        ConfigError: with all errors of all stages.
    """
    initial_models: dict[str, str] = {}
    data_files: set[str] = set()
    errors = []
    for stage in recipe.stage:
        experiment = _with_existing_models(recipe.experiment(stage, folder), initial_models)
        problems = preflight(experiment, world_size)
        if problems := _without_future_files(problems, experiment, {*initial_models, *data_files}):
            errors.append(f"stage {stage.name!r}: {ConfigError(problems, file=stage.file)}")
        if stage.kind == "train":
            initial_models[str(recipe.output(stage, "model", folder))] = experiment.model.path
        else:
            data_files.add(str(recipe.output(stage, "data", folder)))
    if recipe.evaluate is not None:
        evaluation = recipe.evaluation_of(recipe.experiment(recipe.stage[0], folder).model.path)
        if problems := preflight(evaluation, world_size):
            errors.append(f"evaluate: {ConfigError(problems, file=recipe.evaluate)}")
    if errors:
        raise ConfigError("\n".join(errors))


def _with_existing_models(experiment: Experiment, initial_models: Mapping[str, str]) -> Experiment:
    """Return the experiment with models that do not exist yet replaced by the initial models of their stages.

    Args:
        experiment: the experiment of a stage.
        initial_models: path of the model that a stage will train -> path of its initial model.
    """
    changed = {}
    for name in MODELS:
        table = getattr(experiment, name)
        if table is not None and _is_future(table.path, initial_models):
            changed[name] = replace(table, path=initial_models[table.path])
    return replace(experiment, **changed)


def _without_future_files(
    problems: list[Problem], experiment: Experiment, outputs: Container[str]
) -> list[Problem]:
    """Return the problems without those of reward models and data files that do not exist yet.

    Args:
        problems: problems of the experiment.
        experiment: the experiment of a stage.
        outputs: paths that earlier stages write.
    """
    parts: dict[str, object] = {f"reward.{i}": each.component for i, each in enumerate(experiment.reward)}
    parts |= experiment.sources()
    future = [where for where, part in parts.items() if _is_future(getattr(part, "path", None), outputs)]
    return [each for each in problems if not (each.key == "path" and each.where in future)]


def _is_future(path: str | None, outputs: Container[str]) -> bool:
    return path is not None and path in outputs and not Path(path).exists()
