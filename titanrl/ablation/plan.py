"""Plan of an ablation: all its runs, checked before the first one starts."""

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
"""Keys that define the variants; a file with one of them is an ablation."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One variant with one seed."""

    variant: str
    seed: int
    base: Path
    """The experiment file."""
    overrides: tuple[str, ...]
    """Overrides of the experiment file that define this run."""
    experiment: Experiment

    @property
    def folder(self) -> RunFolder:
        run = self.experiment.run
        assert run.name is not None
        return RunFolder(Path(run.folder) / run.name)

    def state(self) -> Literal["absent", "unfinished", "finished"]:
        """Return the state of the run in the folder.

        Raises:
            ConfigError: the folder holds a run with other settings.
        """
        folder = self.folder
        if not folder.config.is_file():
            return "absent"
        planned = to_table(self.experiment)
        for first_step, file in folder.settings():
            # Loaded, not compared as text: keys that were added since then have their defaults.
            stored = to_table(load(file))
            if planned != stored:
                since = f" after step {first_step}" if first_step else ""
                raise ConfigError(
                    f"{str(folder.path)!r} holds a run with other settings{since} "
                    f"({_difference(stored, planned)}); remove the folder to run it again, or rename "
                    "the ablation file."
                )
        return "finished" if self.steps_done() == self.experiment.loop.steps else "unfinished"

    def steps_done(self) -> int:
        """Return the number of the last recorded step."""
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
    """Ordered by seed, so that a partial set of runs compares all variants."""

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def baseline(self) -> str:
        return self.variants[0].name

    @property
    def folder(self) -> Path:
        """Folder of the runs, their logs and the report."""
        return self.runs[0].folder.path.parent


def is_ablation(path: Path) -> bool:
    """Return whether a file defines variants."""
    try:
        return any(key in read_toml(path) for key in CHANGES)
    except ConfigError:
        return False  # The next reader of the file reports its errors.


def plan(path: Path, overrides: Sequence[str] = (), nproc: int | None = None) -> Plan:
    """Return the checked runs of an ablation file.

    Args:
        path: the ablation file.
        overrides: ``a.b.c=value`` each, applied to every variant.
        nproc: number of processes per run; None: not known yet.

    Raises:
        ConfigError: with all errors of the file and of its variants, as ``titanrl check`` reports them.
    """
    settings, parsed = outline(path)
    experiments, errors = {}, {}
    for variant in parsed:
        try:
            experiments[variant.name] = _experiment(path, settings, variant, overrides, nproc)
        except ConfigError as error:
            errors[variant.name] = error.problems
    if errors:
        raise ConfigError(_merge_problems(errors, len(parsed)), file=str(path))
    runs = [
        _run(path, settings, variant, seed, tuple(overrides), experiments[variant.name])
        for seed in range(settings.seeds)
        for variant in parsed
    ]
    return Plan(path, settings, parsed, tuple(runs))


def outline(path: Path) -> tuple[Settings, tuple[Variant, ...]]:
    """Return the settings and the variants, baseline first, of an ablation file; no base file is read.

    Raises:
        ConfigError: with all errors of the file.
    """
    try:
        settings, parsed = _parse(read_toml(path))
    except ConfigError as error:
        raise ConfigError(error.problems, file=str(path)) from None
    problems: list[Problem] = []
    names = [each.name for each in parsed]
    references = [("baseline", settings.baseline)] if settings.baseline is not None else []
    references += [(f"expect.{index}.variant", each.variant) for index, each in enumerate(settings.expect)]
    for key, name in references:
        if name not in names:
            text = f"must be the name of a variant, got {name!r}{did_you_mean(name, names) or ';'} variants: "
            problems.append(Problem("", text + ", ".join(names) + ".", key))
    if problems:
        raise ConfigError(problems, file=str(path))
    baseline = settings.baseline or names[0]
    return settings, tuple(sorted(parsed, key=lambda each: each.name != baseline))


def _parse(table: Mapping[str, Any]) -> tuple[Settings, tuple[Variant, ...]]:
    known = fields_of(Settings)
    problems = unknown_keys(table, [*known, *CHANGES])
    settings: Settings | None = None
    parsed: tuple[Variant, ...] = ()
    try:
        settings = decode(Settings, {key: table[key] for key in known if key in table})
    except ConfigError as error:
        problems += error.problems
    try:
        parsed = variants(table.get("vary"), table.get("variant"))
    except ConfigError as error:
        problems += error.problems
    if settings is None or problems:
        raise ConfigError(problems)
    return settings, parsed


def _experiment(
    path: Path, settings: Settings, variant: Variant, overrides: Sequence[str], nproc: int | None
) -> Experiment:
    base = path.parent / settings.base
    try:
        experiment = load(base, [*variant.overrides, *overrides])
    except ConfigError as error:
        raise ConfigError(_with_origin(problem, str(base)) for problem in error.problems) from None
    problems = preflight(experiment, nproc)
    if experiment.evaluation is None and any(name.startswith("eval/") for name in settings.all_metrics):
        text = "is missing, but a metric of the ablation needs it; add it, or choose another metric."
        problems.append(Problem("evaluation", text))
    if beyond := [step for step in settings.budgets.steps if step > experiment.loop.steps]:
        text = f"must be <= [loop] steps = {experiment.loop.steps}, got {beyond}."
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
    all_overrides = (*variant.overrides, *overrides, *own)
    base = path.parent / settings.base
    return PlannedRun(variant.name, seed, base, all_overrides, replace(experiment, run=run))


def _merge_problems(by_variant: Mapping[str, Sequence[Problem]], num_variants: int) -> list[Problem]:
    """Return each problem once, with its variants unless all variants have it."""
    variants_of: dict[Problem, list[str]] = {}
    for name, problems in by_variant.items():
        for problem in problems:
            variants_of.setdefault(problem, []).append(name)
    return [
        problem
        if len(names) == num_variants
        else replace(
            problem, origin=", ".join([*filter(None, [problem.origin]), *map(_variant_label, names)])
        )
        for problem, names in variants_of.items()
    ]


def _with_origin(problem: Problem, base: str) -> Problem:
    """Return a problem with the base file as its origin, unless a variant's own override caused it."""
    return replace(problem, origin="" if problem.origin == "--set" else problem.origin or base)


def _variant_label(name: str) -> str:
    return f"variant {name!r}"


def _difference(stored: Any, planned: Any, path: str = "") -> str:
    """Return the first key in which two tables differ, with both values."""
    if isinstance(stored, Mapping) and isinstance(planned, Mapping):
        for key in sorted({*stored, *planned}):
            if stored.get(key) != planned.get(key):
                return _difference(stored.get(key), planned.get(key), f"{path}.{key}" if path else key)
    return f"{path} was {stored!r} and is {planned!r}"
