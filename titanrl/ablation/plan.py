"""An ablation file -> its runs; every mistake of any variant is found before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from titanrl.ablation.settings import Settings
from titanrl.ablation.variants import Variant, variants
from titanrl.config.dump import inline, to_table
from titanrl.config.experiment import Experiment
from titanrl.config.load import load, read_toml
from titanrl.errors import ConfigError, Problem, did_you_mean
from titanrl.preflight.verify import preflight
from titanrl.registry.decode import decode, fields_of
from titanrl.registry.values import unknown_keys
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import last_line

__all__ = ["Plan", "PlannedRun", "is_ablation", "outline", "plan"]

CHANGES = ("vary", "variant")
"""Keys that say what varies; a file with one of them is an ablation."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One variant with one seed."""

    variant: str
    seed: int
    base: Path
    """The experiment file."""
    overrides: tuple[str, ...]
    """``--set`` arguments that make it this run."""
    experiment: Experiment

    @property
    def folder(self) -> RunFolder:
        run = self.experiment.run
        assert run.name is not None
        return RunFolder(Path(run.folder) / run.name)

    def state(self) -> Literal["absent", "unfinished", "finished"]:
        """Returns how far the run in the folder has come.

        Raises:
            ConfigError: the folder holds a run of other settings.
        """
        folder = self.folder
        if not folder.config.is_file():
            return "absent"
        # Read as of today: a run made before some key was there has that key's default.
        wanted, found = to_table(self.experiment), to_table(load(folder.config))
        if wanted != found:
            raise ConfigError(
                f"{str(folder.path)!r} holds a run of other settings ({_difference(found, wanted)}); remove "
                "the folder to run it again, or give the ablation's file another name."
            )
        return "finished" if self.steps_done() == self.experiment.loop.steps else "unfinished"

    def steps_done(self) -> int:
        """Returns the steps recorded so far."""
        metrics = self.folder.metrics
        last = last_line(metrics) if metrics.is_file() else None
        return 0 if last is None else int(last["step"])


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked ablation."""

    file: Path
    settings: Settings
    variants: tuple[Variant, ...]
    """The baseline first."""
    runs: tuple[PlannedRun, ...]
    """Seed by seed, so that a part of them compares all variants."""

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def baseline(self) -> str:
        return self.variants[0].name

    @property
    def folder(self) -> Path:
        """Holds the runs, their logs and the report."""
        return self.runs[0].folder.path.parent


def is_ablation(path: Path) -> bool:
    """Whether a file says what varies."""
    try:
        return any(key in read_toml(path) for key in CHANGES)
    except ConfigError:
        return False  # Whoever reads the file next says what is wrong with it.


def plan(path: Path, overrides: Sequence[str] = (), nproc: int | None = None) -> Plan:
    """Returns the runs of an ablation file.

    Args:
        overrides: ``a.b.c=value`` each, laid over every variant. nproc: processes of each run; None: not
            known yet.

    Raises:
        ConfigError: with every mistake of the file, and of every variant what ``titanrl check`` would find.
    """
    settings, found = outline(path)
    experiments, mistakes = {}, {}
    for variant in found:
        try:
            experiments[variant.name] = _experiment(path, settings, variant, overrides, nproc)
        except ConfigError as error:
            mistakes[variant.name] = error.problems
    if mistakes:
        raise ConfigError(_merged(mistakes, len(found)), file=str(path))
    runs = [
        _run(path, settings, variant, seed, tuple(overrides), experiments[variant.name])
        for seed in range(settings.seeds)
        for variant in found
    ]
    return Plan(path, settings, found, tuple(runs))


def outline(path: Path) -> tuple[Settings, tuple[Variant, ...]]:
    """Returns what an ablation file itself says, the baseline first of the variants; no base file is read.

    Raises:
        ConfigError: with every mistake of the file.
    """
    try:
        settings, found = _parts(read_toml(path))
    except ConfigError as error:
        raise ConfigError(error.problems, file=str(path)) from None
    problems: list[Problem] = []
    names = [each.name for each in found]
    named = [("baseline", settings.baseline)] if settings.baseline is not None else []
    named += [(f"expect.{index}.variant", each.variant) for index, each in enumerate(settings.expect)]
    for key, name in named:
        if name not in names:
            text = f"must be the name of a variant, got {name!r}{did_you_mean(name, names) or ';'} variants: "
            problems.append(Problem("", text + ", ".join(names) + ".", key))
    if problems:
        raise ConfigError(problems, file=str(path))
    baseline = settings.baseline or names[0]
    return settings, tuple(sorted(found, key=lambda each: each.name != baseline))


def _parts(table: Mapping[str, Any]) -> tuple[Settings, tuple[Variant, ...]]:
    known = fields_of(Settings)
    problems = unknown_keys(table, [*known, *CHANGES])
    settings: Settings | None = None
    found: tuple[Variant, ...] = ()
    try:
        settings = decode(Settings, {key: table[key] for key in known if key in table})
    except ConfigError as error:
        problems += error.problems
    try:
        found = variants(table.get("vary"), table.get("variant"))
    except ConfigError as error:
        problems += error.problems
    if settings is None or problems:
        raise ConfigError(problems)
    return settings, found


def _experiment(
    path: Path, settings: Settings, variant: Variant, overrides: Sequence[str], nproc: int | None
) -> Experiment:
    base = path.parent / settings.base
    try:
        experiment = load(base, [*variant.overrides, *overrides])
    except ConfigError as error:
        raise ConfigError(_placed(problem, str(base)) for problem in error.problems) from None
    problems = preflight(experiment, nproc)
    if experiment.evaluation is None and any(name.startswith("eval/") for name in settings.shown):
        text = "is missing, and a metric of the ablation is taken from it; add it, or choose another metric."
        problems.append(Problem("evaluation", text))
    if late := [step for step in settings.budgets.steps if step > experiment.loop.steps]:
        text = f"must be <= [loop] steps = {experiment.loop.steps}, got {late}."
        problems.append(Problem("budgets", text, "steps"))
    if problems:
        raise ConfigError(problems)
    return experiment


def _run(
    path: Path,
    settings: Settings,
    variant: Variant,
    seed: int,
    overrides: tuple[str, ...],
    experiment: Experiment,
) -> PlannedRun:
    folder = str(Path(experiment.run.folder) / "ablations" / path.stem)
    name = f"{variant.folder_name}-seed{seed}"
    run = replace(experiment.run, name=name, folder=folder, seed=seed)
    own = (f"run.name={inline(name)}", f"run.folder={inline(folder)}", f"run.seed={seed}")
    return PlannedRun(
        variant.name, seed, path.parent / settings.base, (*variant.overrides, *overrides, *own),
        replace(experiment, run=run),
    )  # fmt: skip


def _merged(mistakes: Mapping[str, Sequence[Problem]], num_variants: int) -> list[Problem]:
    """Returns each mistake once: with its variant, unless all have it."""
    of: dict[Problem, list[str]] = {}
    for name, problems in mistakes.items():
        for problem in problems:
            of.setdefault(problem, []).append(name)
    return [
        problem
        if len(names) == num_variants
        else replace(problem, origin=", ".join([*filter(None, [problem.origin]), *map(_called, names)]))
        for problem, names in of.items()
    ]


def _placed(problem: Problem, base: str) -> Problem:
    """Returns a mistake as the ablation's file sees it: what a variant wrote is its own."""
    return replace(problem, origin="" if problem.origin == "--set" else problem.origin or base)


def _called(name: str) -> str:
    return f"variant {name!r}"


def _difference(found: Any, wanted: Any, at: str = "") -> str:
    """Returns the first key in which two tables differ, with both values."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*found, *wanted}):
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{at}.{key}" if at else key)
    return f"{at} was {found!r} and is {wanted!r}"
