"""Loads an experiment file: TOML, base files, imports and overrides; reports all mistakes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli

from titanrl.config.experiment import Experiment
from titanrl.config.imports import import_all
from titanrl.config.merge import Layers
from titanrl.config.paths import refuse_faulty_path
from titanrl.config.presets import locate
from titanrl.errors import ConfigError, Problem, did_you_mean

__all__ = ["load", "parse", "read", "read_toml"]

DIRECTIVES = ("base", "drop", "imports")
"""Top-level keys that control how files are merged."""

FILE_ONLY = ("base", "drop")
"""Directives that act while files are merged, which is done before overrides apply."""

PLAIN_NAMES = ("run", "optimizer")
"""Tables whose ``name`` picks no component, so that a new name keeps their other keys."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Returns the experiment of a TOML file.

    Args:
        path: the file, or ``titanrl:`` and the name of a preset.
        overrides: ``a.b.c=value`` each, laid over it; names of components come first.

    Raises:
        ConfigError: with every mistake, each with its table, key, file, and what is allowed.
    """
    layers = read(Path(path), overrides)
    try:
        return _decode(layers)
    except ConfigError as error:
        problems = _traced(error.problems, layers, str(path))
        problems = _attributed(problems, Path(path), overrides)
        raise ConfigError(problems, file=str(path)) from error.__cause__


def parse(table: Mapping[str, Any]) -> Experiment:
    """Returns the experiment of a table, which must be a complete, resolved file.

    Raises:
        ConfigError: as ``load``.
    """
    import_all(table.get("imports", []))
    return Experiment.from_table(table)


def read(path: Path, overrides: Sequence[str] = ()) -> Layers:
    """Returns the file merged over its base files, with the overrides on top; nothing is decoded yet.

    Raises:
        ConfigError: a file is missing or not TOML, ``base`` is circular, or an override names no table.
    """
    refuse_faulty_path(str(path), "the path")
    path = locate(path)
    layers = _stack(path, ())
    problems: list[Problem] = []
    for assignment in sorted(overrides, key=lambda each: not each.partition("=")[0].strip().endswith("name")):
        try:
            _refuse_file_only(assignment)
            layers.set(assignment)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError([replace(problem, origin="--set") for problem in problems], file=str(path))
    run = layers.table.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("name", path.stem)
    return layers


def _refuse_file_only(assignment: str) -> None:
    """Refuses an override of a directive that only a file can give; it would have no effect."""
    key = assignment.partition("=")[0].strip().partition(".")[0]
    if key in FILE_ONLY:
        remedy = "write it in the file" if key == "base" else "drop a key with an empty value, `--set a.b.c=`"
        raise ConfigError(Problem("", f"cannot be overridden, got {assignment!r}; {remedy}.", key))


def _stack(path: Path, above: tuple[Path, ...], *, only_bases: bool = False) -> Layers:
    if path.resolve() in above:
        raise ConfigError(Problem("", f"leads in a circle back to {path}; break it.", "base"), file=str(path))
    table = read_toml(path)
    layers = Layers(PLAIN_NAMES)
    bases, imports, drops = (table.pop(key, []) for key in ("base", "imports", "drop"))
    for base in _strings(bases, "base", path):
        layers.merge(_stack(locate(base, path.parent), (*above, path.resolve())))
    if only_bases:
        return layers
    for dropped in _strings(drops, "drop", path):
        try:
            layers.drop(dropped)
        except ConfigError as error:
            raise ConfigError(error.problems, file=str(path)) from None
    inherited = layers.table.get("imports", [])
    own = [_located(name, path.parent) for name in _strings(imports, "imports", path)]
    if inherited or own:
        table["imports"] = [*inherited, *(name for name in own if name not in inherited)]
    layers.add(table, str(path))
    return layers


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the tables of one file, without those of its base files.

    Raises:
        ConfigError: no such file, or no TOML.
    """
    refuse_faulty_path(str(path), "the path")
    try:
        return tomli.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.toml")])
        raise ConfigError(f"no such file: {path}{near or '.'}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no UTF-8 text; give a TOML file.") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}.") from None


def _strings(value: Any, key: str, path: Path) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        message = f"must be a string or an array of strings, got {value!r}."
        raise ConfigError(Problem("", message, key), file=str(path))
    for each in values:
        refuse_faulty_path(each, key, file=str(path))
    return values


def _located(name: str, folder: Path) -> str:
    """Returns an import that names a .py file with its full path, so that the table holds anywhere."""
    return str((folder / name).resolve()) if name.endswith(".py") else name


def _traced(problems: Iterable[Problem], layers: Layers, file: str) -> list[Problem]:
    """Returns the problems with the file that has the key, unless it is the one in the heading."""
    traced = []
    for problem in problems:
        key = problem.key or problem.message.partition(" ")[0]
        origin = layers.origin(f"{problem.where}.{key}" if problem.where else key)
        traced.append(replace(problem, origin="" if origin == file else origin))
    return traced


def _attributed(problems: list[Problem], path: Path, overrides: Sequence[str]) -> list[Problem]:
    """Returns the problems with the origin that caused them.

    A key of the file, or ``--set``, may cause a mistake in a table of a base file. If the experiment below is
    valid, the layer above it caused every mistake.
    """
    if overrides:
        without = _problems(read(path))
        if not without:
            return [replace(problem, origin="--set") for problem in problems]
        known = {(problem.where, problem.key, problem.message) for problem in without}
        changed = {assignment.partition("=")[0].strip() for assignment in overrides}
        problems = [
            replace(problem, origin="--set")
            if (problem.where, problem.key, problem.message) not in known
            and any(key.startswith(f"{problem.where}.") for key in changed)
            else problem
            for problem in problems
        ]
    bases = _stack(locate(path), (), only_bases=True)
    if bases.table and not _problems(bases):
        return [problem if problem.origin == "--set" else replace(problem, origin="") for problem in problems]
    return problems


def _problems(layers: Layers) -> tuple[Problem, ...]:
    """Returns what is wrong with an experiment."""
    try:
        _decode(layers)
    except ConfigError as error:
        return error.problems
    return ()


def _decode(layers: Layers) -> Experiment:
    import_all(layers.table.get("imports", []))
    return Experiment.from_table(layers.table, DIRECTIVES)
