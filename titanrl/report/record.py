"""What a run folder holds, read back: its file, its numbers, its samples, its alerts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli

from titanrl.errors import ConfigError
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import read_jsonl

__all__ = ["RunRecord", "flattened", "read_runs"]


@dataclass(frozen=True, kw_only=True)  # no slots, for the sake of cached_property
class RunRecord:
    """One run as it lies on disk; a run that is under way reads as far as it has come."""

    name: str
    """Told apart from the other runs read with it."""
    path: Path
    table: dict[str, Any]
    """The resolved experiment file; empty where the folder has none."""
    metrics: list[dict[str, Any]]
    """One a step: ``step`` and ``stage/quantity`` numbers, None where one was not finite."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def keys(self) -> set[str]:
        """The metrics that have a number in some step."""
        return {key for line in self.metrics for key, value in line.items() if value is not None} - {"step"}

    @property
    def steps_done(self) -> int:
        return max((int(line["step"]) for line in self.metrics), default=0)

    @property
    def steps_left(self) -> int:
        """Steps that the run's file still asks for."""
        planned = int(self.table.get("loop", {}).get("steps", 0))
        return max(planned - self.steps_done, 0)

    @property
    def progress(self) -> str:
        """How far the run has come: ``3 of 4`` steps."""
        return f"{self.steps_done} of {self.steps_done + self.steps_left}"

    def series(self, *keys: str) -> tuple[list[int], list[list[float]]]:
        """Returns the steps that have numbers for all ``keys``, and those numbers, key by key."""
        lines = [line for line in self.metrics if all(line.get(key) is not None for key in keys)]
        return [line["step"] for line in lines], [[line[key] for line in lines] for key in keys]

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> RunRecord:
        """Reads a run folder.

        Raises:
            ConfigError: it holds no metrics.jsonl.
        """
        folder = RunFolder(path)
        if not folder.metrics.is_file():
            raise ConfigError(f"{str(path)!r} holds no metrics.jsonl; name the folder of a run.")
        config, versions = folder.config, path / "versions.json"
        return cls(
            name=name or path.resolve().name,
            path=path,
            table=tomli.loads(config.read_text("utf-8")) if config.is_file() else {},
            metrics=list(read_jsonl(folder.metrics)),
            samples=_lines(folder.samples),
            alerts=_lines(folder.alerts),
            versions=json.loads(versions.read_text("utf-8")) if versions.is_file() else {},
        )


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Returns the runs of several folders; those whose folders share a name are called by their paths.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    names = [path.resolve().name for path in paths]
    return [
        RunRecord.read(path, str(path) if names.count(name) > 1 else name)
        for path, name in zip(paths, names, strict=True)
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path)) if path.is_file() else []


def flattened(table: Any, prefix: str = "") -> dict[str, Any]:
    """Returns dotted key -> value of a file, entries of arrays of tables by their number."""
    if isinstance(table, Mapping):
        items = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in table.items()]
    elif isinstance(table, list) and any(isinstance(each, Mapping) for each in table):
        items = [(f"{prefix}.{i}", value) for i, value in enumerate(table)]
    else:
        return {prefix: table if isinstance(table, int | float) else str(table)}
    return {key: value for name, each in items for key, value in flattened(each, name).items()}
