"""A pipeline file: its stages, the experiment of each, and what of earlier stages goes into it."""

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

__all__ = ["Pipeline", "Stage", "is_pipeline", "load_pipeline"]

EVALUATE = "evaluate"
PLACEHOLDER = re.compile(r"\{([\w-]+)\.(\w+)\}")
MARK = "\ue000"
"""Stands around the number of a path while a value is read; a private character, so no text has it."""
OUTPUTS = {"train": ("model", "run"), "rft": ("data",)}
"""What each kind of stage leaves: an exported model and its run folder, or a file of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One experiment: either trained, or sampled for data."""

    name: str
    """Its folder, and what later stages call it."""
    train: str | None = None
    """Experiment file, relative to the pipeline's, that is trained and whose model is exported."""
    rft: str | None = None
    """Experiment file with [rft], relative to the pipeline's, whose answers become data."""
    set: tuple[str, ...] = ()
    """``a.b.c=value`` each, laid over the experiment file. ``{STAGE.model}``, ``{STAGE.run}`` and
    ``{STAGE.data}`` stand for what an earlier stage left."""

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
        """The experiment file."""
        file = self.train or self.rft
        assert file is not None
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a pipeline file holds."""

    stage: tuple[Stage, ...]
    """The stages, in their order."""
    evaluate: str | None = None
    """Experiment file, relative to the pipeline's, on whose [evaluation.prompts] the first stage's model and
    every trained language model are judged; omitted: no held-out scores."""
    evaluate_set: tuple[str, ...] = ()
    """``a.b.c=value`` each, laid over that file."""

    def experiment(self, stage: Stage, folder: Path) -> Experiment:
        """Returns a stage's experiment with its placeholders filled in.

        Args:
            folder: of the pipeline's run.

        Raises:
            ConfigError: no earlier stage leaves what a placeholder names, or as ``load``.
        """
        before = {each.name: each for each in self.stage[: self.stage.index(stage)]}

        def filled(match: re.Match[str]) -> str:
            name, output = match.groups()
            if name not in before:
                known = ", ".join(before) or "none"
                raise ConfigError(
                    f"set: {match[0]} names no earlier stage{did_you_mean(name, before) or ';'} "
                    f"earlier: {known}."
                )
            if output not in OUTPUTS[before[name].kind]:
                leaves = ", ".join(f"{{{name}.{each}}}" for each in OUTPUTS[before[name].kind])
                raise ConfigError(
                    f"set: {match[0]} is nothing that stage {name!r} leaves; it leaves {leaves}."
                )
            return str(self.output(before[name], output, folder))

        overrides = [_filled(each, filled) for each in stage.set]
        if stage.kind == "train":
            overrides += [f"run.folder={inline(str(folder / stage.name))}", "run.name=run"]
        return load(stage.file, overrides)

    def output(self, stage: Stage, output: str, folder: Path) -> Path:
        """Returns where a stage leaves something."""
        if output != "data":
            return folder / stage.name / output
        settings = self.experiment(stage, folder).rft
        if settings is None:
            raise ConfigError(f"{stage.file}: [rft] is missing; stage {stage.name!r} needs it.")
        return folder / stage.name / "data" / f"{settings.write}.jsonl"

    def judge(self, model: Path | str) -> Experiment:
        """Returns the experiment that judges a model folder."""
        assert self.evaluate is not None
        return load(self.evaluate, [f"model.path={inline(str(model))}", *self.evaluate_set])


def is_pipeline(path: Path) -> bool:
    """Whether a file lists stages."""
    try:
        return "stage" in read_toml(path)
    except ConfigError:
        return False  # Whoever reads the file next says what is wrong with it.


def load_pipeline(path: Path, folder: Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Returns a pipeline whose experiment files are all right, as far as files can tell.

    Args:
        folder: of its run. overrides: ``STAGE.a.b.c=value`` or ``evaluate.a.b.c=value`` each.

    Raises:
        ConfigError: with every mistake of every file.
    """
    table = read_toml(path)
    try:
        pipeline: Pipeline = decode(Pipeline, table)
        pipeline = _overridden(_located(pipeline, path.parent), overrides)
        _check_names(pipeline)
    except ConfigError as error:
        raise ConfigError(error.problems, file=str(path)) from None
    problems = []
    for stage in pipeline.stage:
        try:
            if pipeline.experiment(stage, folder).rft is None and stage.kind == "rft":
                raise ConfigError(f"{stage.file}: [rft] is missing; it says what is sampled and kept.")
        except ConfigError as error:
            problems.append(f"stage {stage.name!r}: {error}")
    if pipeline.evaluate is not None and not problems:
        first = pipeline.experiment(pipeline.stage[0], folder)
        try:
            if pipeline.judge(first.model.path).evaluation is None:
                raise ConfigError(f"{pipeline.evaluate}: [evaluation] is missing; it holds the prompts.")
        except ConfigError as error:
            problems.append(f"evaluate: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    return pipeline


def _filled(assignment: str, path_of: Callable[[re.Match[str]], str]) -> str:
    """Returns a ``--set`` argument with paths for its placeholders, whatever characters the paths hold."""
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
        return assignment  # Whoever reads it next says what is wrong with it.

    def put(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: put(each) for key, each in value.items()}
        if isinstance(value, list):
            return [put(each) for each in value]
        if isinstance(value, str):
            return re.sub(f"{MARK}(\\d+){MARK}", lambda match: paths[int(match[1])], value)
        return value

    return f"{key}={inline(put(value))}"


def _located(pipeline: Pipeline, parent: Path) -> Pipeline:
    """Returns the pipeline with files as seen from the working directory."""

    def at(file: str | None) -> str | None:
        return None if file is None else os.path.normpath(parent / file)

    stages = tuple(replace(each, train=at(each.train), rft=at(each.rft)) for each in pipeline.stage)
    return replace(pipeline, stage=stages, evaluate=at(pipeline.evaluate))


def _check_names(pipeline: Pipeline) -> None:
    names = [each.name for each in pipeline.stage]
    if not names:
        raise ConfigError("[[stage]] is missing; a pipeline has at least one.")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"[[stage]] name must be unique, got {name!r} again; give this one its own.")
    if pipeline.evaluate is None and pipeline.evaluate_set:
        raise ConfigError("evaluate_set is not used without evaluate; leave it out.")


def _overridden(pipeline: Pipeline, overrides: Sequence[str]) -> Pipeline:
    further: Mapping[str, list[str]] = {name: [] for name in (EVALUATE, *(s.name for s in pipeline.stage))}
    for override in overrides:
        name, _, rest = override.partition(".")
        if name not in further or not rest:
            known = ", ".join(further)
            raise ConfigError(
                f"--set {override!r} must begin with a stage and a dot{did_you_mean(name, further) or ';'} "
                f"one of: {known}."
            )
        further[name].append(rest)
    stages = tuple(replace(each, set=(*each.set, *further[each.name])) for each in pipeline.stage)
    return replace(pipeline, stage=stages, evaluate_set=(*pipeline.evaluate_set, *further[EVALUATE]))
