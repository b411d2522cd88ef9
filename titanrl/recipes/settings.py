"""Recipe files: their stages, the experiment of each, and the references to outputs of earlier stages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from titanrl.config.dump import inline
from titanrl.config.experiment import Experiment
from titanrl.config.load import load, read_toml
from titanrl.config.merge import parse_value
from titanrl.errors import ConfigError, did_you_mean
from titanrl.registry.decode import decode

__all__ = ["Recipe", "Stage", "is_recipe", "load_recipe"]

EVALUATE = "evaluate"
PLACEHOLDER = re.compile(r"\{([\w-]+)\.(\w+)\}")
MARK = "\ue000"
"""Delimiter of a path's index while a value is parsed; a private-use character, which no text contains."""
OUTPUTS = {"train": ("model", "run"), "rft": ("data",)}
"""Outputs of each kind of stage: an exported model and its run folder, or a data file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One experiment of a recipe, which either trains a model or samples data."""

    name: str
    """Name of the stage's folder and of the stage in placeholders."""
    train: str | None = None
    """Experiment file, relative to the recipe, that is trained and whose model is exported."""
    rft: str | None = None
    """Experiment file with [rft], relative to the recipe, that samples training data."""
    set: tuple[str, ...] = ()
    """Overrides of the experiment file, ``a.b.c=value`` each. The placeholders ``{STAGE.model}``,
    ``{STAGE.run}`` and ``{STAGE.data}`` are replaced by the output paths of an earlier stage."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name) or self.name == EVALUATE:
            raise ValueError(f"name must be letters, digits, - and _, and not 'evaluate', got {self.name!r}.")
        if (self.train is None) == (self.rft is None):
            got = "neither" if self.rft is None else "both"
            raise ValueError(f"train or rft must name an experiment file, got {got}; give exactly one.")

    @property
    def kind(self) -> Literal["train", "rft"]:
        return "rft" if self.train is None else "train"

    @property
    def file(self) -> str:
        """Experiment file of the stage."""
        file = self.train or self.rft
        assert file is not None
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The content of a recipe file."""

    stage: tuple[Stage, ...]
    """Stages in the order in which they run."""
    evaluate: str | None = None
    """Experiment file, relative to the recipe, whose [evaluation.prompts] score the first stage's initial
    model and every trained language model. Default: no held-out scores."""
    evaluate_set: tuple[str, ...] = ()
    """Overrides of that file, ``a.b.c=value`` each."""

    def experiment(self, stage: Stage, folder: Path) -> Experiment:
        """Return a stage's experiment with its placeholders replaced.

        Args:
            stage: a stage of this recipe.
            folder: folder of the recipe's run.

        Raises:
            ConfigError: no earlier stage has the output that a placeholder names; and as ``load``.
        """
        earlier = {each.name: each for each in self.stage[: self.stage.index(stage)]}

        def path_of(match: re.Match[str]) -> str:
            name, output = match.groups()
            if name not in earlier:
                known = ", ".join(earlier) or "none"
                raise ConfigError(
                    f"set: {match[0]} names no earlier stage{did_you_mean(name, earlier) or ';'} "
                    f"earlier stages: {known}."
                )
            if output not in OUTPUTS[earlier[name].kind]:
                outputs = ", ".join(f"{{{name}.{each}}}" for each in OUTPUTS[earlier[name].kind])
                raise ConfigError(f"set: {match[0]} is not an output of stage {name!r}; it has {outputs}.")
            return str(self.output(earlier[name], output, folder))

        overrides = [_replace_placeholders(each, path_of) for each in stage.set]
        if stage.kind == "train":
            overrides += [f"run.folder={inline(str(folder / stage.name))}", "run.name=run"]
        return load(stage.file, overrides)

    def output(self, stage: Stage, output: str, folder: Path) -> Path:
        """Return the path of a stage's output.

        Args:
            stage: a stage of this recipe.
            output: one of the stage's ``OUTPUTS``.
            folder: folder of the recipe's run.
        """
        if output != "data":
            return folder / stage.name / output
        settings = self.experiment(stage, folder).rft
        if settings is None:
            raise ConfigError(f"{stage.file}: [rft] is missing; stage {stage.name!r} needs it.")
        return folder / stage.name / "data" / f"{settings.write}.jsonl"

    def evaluation_of(self, model: Path | str) -> Experiment:
        """Return the experiment that evaluates a model folder."""
        assert self.evaluate is not None
        return load(self.evaluate, [f"model.path={inline(str(model))}", *self.evaluate_set])


def is_recipe(path: Path) -> bool:
    """Return whether a file lists stages."""
    try:
        return "stage" in read_toml(path)
    except ConfigError:
        return False  # The next reader of the file reports its errors.


def load_recipe(path: Path, folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe and check its experiment files, as far as files can tell.

    Args:
        path: the recipe file.
        folder: folder of the recipe's run.
        overrides: ``STAGE.a.b.c=value`` or ``evaluate.a.b.c=value`` each.

    Raises:
        ConfigError: with all errors of all files.
    """
    table = read_toml(path)
    try:
        recipe: Recipe = decode(Recipe, table)
        recipe = _with_overrides(_resolve_files(recipe, path.parent), overrides)
        _check_names(recipe)
    except ConfigError as error:
        raise ConfigError(error.problems, file=str(path)) from None
    problems = []
    for stage in recipe.stage:
        try:
            if recipe.experiment(stage, folder).rft is None and stage.kind == "rft":
                raise ConfigError(f"{stage.file}: [rft] is missing; it defines which samples are written.")
        except ConfigError as error:
            problems.append(f"stage {stage.name!r}: {error}")
    if recipe.evaluate is not None and not problems:
        first = recipe.experiment(recipe.stage[0], folder)
        try:
            if recipe.evaluation_of(first.model.path).evaluation is None:
                raise ConfigError(f"{recipe.evaluate}: [evaluation] is missing; it holds the prompts.")
        except ConfigError as error:
            problems.append(f"evaluate: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    return recipe


def _replace_placeholders(assignment: str, path_of: Callable[[re.Match[str]], str]) -> str:
    """Return a ``--set`` argument with paths in place of its placeholders; paths may hold any character."""
    key, _, text = assignment.partition("=")
    paths: list[str] = []

    def mark(match: re.Match[str]) -> str:
        paths.append(path_of(match))
        return f"{MARK}{len(paths) - 1}{MARK}"

    marked = PLACEHOLDER.sub(mark, text).strip()
    if not paths:
        return assignment
    try:
        value = parse_value(marked)
    except ConfigError:
        return assignment  # The next reader of the assignment reports its errors.

    def insert_paths(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: insert_paths(each) for key, each in value.items()}
        if isinstance(value, list):
            return [insert_paths(each) for each in value]
        if isinstance(value, str):
            return re.sub(f"{MARK}(\\d+){MARK}", lambda match: paths[int(match[1])], value)
        return value

    return f"{key}={inline(insert_paths(value))}"


def _resolve_files(recipe: Recipe, parent: Path) -> Recipe:
    """Return the recipe with file names relative to the working directory."""

    def resolve(file: str | None) -> str | None:
        return None if file is None else os.path.normpath(parent / file)

    stages = tuple(replace(each, train=resolve(each.train), rft=resolve(each.rft)) for each in recipe.stage)
    return replace(recipe, stage=stages, evaluate=resolve(recipe.evaluate))


def _check_names(recipe: Recipe) -> None:
    names = [each.name for each in recipe.stage]
    if not names:
        raise ConfigError("[[stage]] is missing; a recipe has at least one.")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"[[stage]] name must be unique, got {name!r} again; rename this stage.")
    if recipe.evaluate is None and recipe.evaluate_set:
        raise ConfigError("evaluate_set is not used without evaluate; remove it.")


def _with_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    by_stage: Mapping[str, list[str]] = {name: [] for name in (EVALUATE, *(s.name for s in recipe.stage))}
    for override in overrides:
        name, _, assignment = override.partition(".")
        if name not in by_stage or not assignment:
            known = ", ".join(by_stage)
            raise ConfigError(
                f"--set {override!r} must begin with a stage and a dot"
                f"{did_you_mean(name, by_stage) or ';'} one of: {known}."
            )
        by_stage[name].append(assignment)
    stages = tuple(replace(each, set=(*each.set, *by_stage[each.name])) for each in recipe.stage)
    return replace(recipe, stage=stages, evaluate_set=(*recipe.evaluate_set, *by_stage[EVALUATE]))
