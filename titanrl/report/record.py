"""Record of a run, read from its folder: experiment file, metrics, samples, alerts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli

from titanrl.errors import ConfigError
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import read_jsonl
from titanrl.report.metrics import read_metrics

__all__ = ["RunRecord", "flattened", "read_runs"]


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs __dict__
class RunRecord:
    """One run as stored on disk; the record of a running run ends with its last finished step."""

    name: str
    """Name, unique among the runs that are read together."""
    path: Path
    table: dict[str, Any]
    """The resolved experiment file that holds for the last steps; empty if the folder has none."""
    metrics: list[dict[str, Any]]
    """One per step: ``step`` and ``stage/quantity`` numbers; None if a number was not finite."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    """One per process that trained the run: its first step, date, host, command, settings."""
    changes: list[tuple[int, str, Any, Any]] = field(default_factory=list)
    """Settings that changed during the run: the last step before, key, earlier and later value."""

    @cached_property
    def keys(self) -> set[str]:
        """Metrics that have a number in some step."""
        return {key for line in self.metrics for key, value in line.items() if value is not None} - {"step"}

    @property
    def steps_done(self) -> int:
        return max((int(line["step"]) for line in self.metrics), default=0)

    @property
    def steps_left(self) -> int:
        """Number of steps that remain to be run."""
        planned = int(self.table.get("loop", {}).get("steps", 0))
        return max(planned - self.steps_done, 0)

    @property
    def progress(self) -> str:
        """Finished and planned steps as text: ``3 of 4``."""
        return f"{self.steps_done} of {self.steps_done + self.steps_left}"

    def series(self, *keys: str) -> tuple[list[int], list[list[float]]]:
        """Return the steps that have numbers for all ``keys``, and the numbers of each key."""
        lines = [line for line in self.metrics if all(line.get(key) is not None for key in keys)]
        return [line["step"] for line in lines], [[line[key] for line in lines] for key in keys]

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> RunRecord:
        """Read a run folder.

        Args:
            path: the folder.
            name: name of the run. Default: name of the folder.

        Raises:
            ConfigError: the folder holds no metrics.jsonl.
        """
        folder = RunFolder(path)
        if not folder.metrics.is_file():
            raise ConfigError(f"{str(path)!r} holds no metrics.jsonl; name the folder of a run.")
        config, versions = folder.config, path / "versions.json"
        return cls(
            name=name or path.resolve().name,
            path=path,
            table=tomli.loads(config.read_text("utf-8")) if config.is_file() else {},
            sessions=_lines(folder.sessions),
            changes=_changes(folder),
            metrics=list(read_metrics(folder.metrics)),
            samples=_lines(folder.samples),
            alerts=_lines(folder.alerts),
            versions=json.loads(versions.read_text("utf-8")) if versions.is_file() else {},
        )


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read several run folders; runs whose folders have equal names are named by their paths.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    names = [path.resolve().name for path in paths]
    return [
        RunRecord.read(path, str(path) if names.count(name) > 1 else name)
        for path, name in zip(paths, names, strict=True)
    ]


def _changes(folder: RunFolder) -> list[tuple[int, str, Any, Any]]:
    """Return the settings that changed during a run."""
    history = [(each.first_step, each.path) for each in folder.settings() if each.path.is_file()]
    tables = [(step, flattened(tomli.loads(path.read_text("utf-8")))) for step, path in history]
    return [
        (step, key, before.get(key), after.get(key))
        for (_, before), (step, after) in pairwise(tables)
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path)) if path.is_file() else []


def flattened(table: Any, prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value of a file; entries of arrays of tables are numbered."""
    if isinstance(table, Mapping):
        items = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in table.items()]
    elif isinstance(table, list) and any(isinstance(each, Mapping) for each in table):
        items = [(f"{prefix}.{i}", value) for i, value in enumerate(table)]
    else:
        return {prefix: table if isinstance(table, int | float) else str(table)}
    return {key: value for name, each in items for key, value in flattened(each, name).items()}
