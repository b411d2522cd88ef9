"""What a run folder holds, read back: its file, its numbers, its samples, its alerts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from titanrl.errors import ConfigError
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import read_jsonl

__all__ = ["RunRecord", "read_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def keys(self) -> set[str]:
        """The metrics that have a number in some step."""
        return {key for line in self.metrics for key, value in line.items() if value is not None} - {"step"}

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
            alerts=_lines(path / "alerts.jsonl"),
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
