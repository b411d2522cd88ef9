"""Run folder: its name and number, its settings with the steps from which they hold, all output of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli
import tomli_w

from titanrl.errors import ConfigError
from titanrl.report.jsonl import JsonLines, read_jsonl
from titanrl.report.lock import FolderLock, refuse_in_use
from titanrl.report.provenance import now, provenance, versions

__all__ = ["RunFolder", "Settings", "write_atomic"]


class Settings(NamedTuple):
    """A resolved experiment file of a run."""

    first_step: int
    """Number of finished steps when it began to hold: it holds for the steps after that one."""
    path: Path


class RunFolder:
    """Paths of one run, and its identity: name, number, and one entry per start of a process.

    ``run.json`` holds the name and the number of the run among the runs of its name. ``sessions.jsonl`` has a
    line per process that trained the run: from which step, when, where, by which command, with which file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = path / "run.json"
        self.sessions = path / "sessions.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples.jsonl"
        self.alerts = path / "alerts.jsonl"
        self.console = path / "console.log"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile"
        self.curves = path / "curves.png"
        self.lock = FolderLock(path / "run.lock")

    @classmethod
    def claim(cls, parent: Path, name: str) -> RunFolder:
        """Create the folder of a new run and return it: ``parent/name``, or ``parent/name-2``, ...

        The number is one more than the largest number of a run of that name. A folder that exists is never
        taken, even if it is created at the same moment.

        Args:
            parent: folder of all runs.
            name: name of the run.
        """
        parent.mkdir(parents=True, exist_ok=True)
        number = max((each for each, _ in _runs(parent, name, with_unnamed=True)), default=0)
        while True:
            number += 1
            path = parent / _folder_name(name, number)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            folder = cls(path)
            write_atomic(folder.identity, json.dumps({"name": name, "number": number}) + "\n")
            return folder

    @classmethod
    def newest(cls, parent: Path, name: str) -> RunFolder:
        """Return the run of a name with the largest number.

        Raises:
            ConfigError: there is none.
        """
        runs = list(_runs(parent, name))
        if not runs:
            raise ConfigError(
                f"--resume found no run named {name!r} in {str(parent)!r}; start it without --resume."
            )
        # A copy of a run has its number too, but not the name of its folder.
        return cls(max(runs, key=lambda run: (run[0], run[1].name == _folder_name(name, run[0])))[1])

    @property
    def config(self) -> Path:
        """The resolved experiment file that holds for the last steps; it may not exist yet."""
        return self.settings()[-1].path

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was completed; its files are not read."""
        return any(self.checkpoints.glob("step-*/manifest.json"))

    @property
    def has_records(self) -> bool:
        """Whether any step was recorded."""
        return self.metrics.is_file() and self.metrics.stat().st_size > 0

    def settings(self) -> list[Settings]:
        """Return the resolved files of the run's present history, each with the step from which it holds.

        A file that no recorded step was made with, because the run was resumed from before it, is left out.
        """
        history: list[Settings] = []
        sessions = read_jsonl(self.sessions) if self.sessions.is_file() else []
        for session in sessions:
            if {"first_step", "settings"} <= session.keys():
                file = Settings(int(session["first_step"]), self.path / str(session["settings"]))
                history = [each for each in history if each.first_step < file.first_step]
                if not history or history[-1].path != file.path:
                    history.append(file)
        # Runs of earlier versions have no sessions.
        return history or [Settings(0, self.path / "experiment.toml")]

    def last_session(self) -> dict[str, Any]:
        """Return the entry of the process that trained the run last; empty for a run without entries."""
        sessions = list(read_jsonl(self.sessions)) if self.sessions.is_file() else []
        return sessions[-1] if sessions else {}

    def write_experiment(self, resolved: Mapping[str, Any], seed: int) -> None:
        """Write experiment.toml, the resolved file, which can be run itself, and versions.json."""
        write_atomic(self.path / "experiment.toml", tomli_w.dumps(resolved))
        write_atomic(self.path / "versions.json", json.dumps({"seed": seed, **versions()}, indent=2) + "\n")

    def begin_session(
        self, resolved: Mapping[str, Any], *, first_step: int, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Add an entry for this process, and the resolved file if it differs from the one that holds.

        Args:
            resolved: the resolved experiment file.
            first_step: number of steps that were finished when this process started.
            facts: further facts of the entry.
        """
        text = tomli_w.dumps(resolved)
        file = self.config
        if file.read_text("utf-8") != text:
            file = _unused(self.path, f"experiment-from-step-{first_step:05d}", ".toml")
            write_atomic(file, text)
        session = {"first_step": first_step, "settings": file.name, **provenance(), "versions": versions()}
        sessions = JsonLines(self.sessions)
        sessions.write({**session, **(facts or {})})
        sessions.close()

    def log(self, text: str) -> None:
        """Append lines to console.log, with the time."""
        with self.console.open("a", encoding="utf-8") as file:
            file.writelines(f"{now()}  {line}\n" for line in text.rstrip("\n").split("\n"))

    def set_aside(self) -> Path | None:
        """Make the path free for a new run, without losing recorded steps.

        A folder without recorded steps is removed. Another one is renamed; its new path is returned.

        Raises:
            ConfigError: a process is writing the folder.
        """
        refuse_in_use(self.lock.path)
        if not self.path.exists():
            return None
        if not self.has_records:
            shutil.rmtree(self.path)
            return None
        aside = _unused(self.path.parent, f"{self.path.name}-set-aside")
        self.path.rename(aside)
        write_atomic(aside / "run.json", json.dumps({"name": aside.name, "number": 1}) + "\n")
        return aside


def _runs(parent: Path, name: str, *, with_unnamed: bool = False) -> Iterator[tuple[int, Path]]:
    """Yield number and folder of the runs of a name.

    Args:
        parent: folder of all runs.
        name: recorded name; the name of the folder does not count.
        with_unnamed: whether folders without a recorded name count as runs of the name that they begin with.
    """
    number_of = re.compile(rf"{re.escape(name)}(?:-([1-9]\d*))?")
    for path in sorted(parent.iterdir()) if parent.is_dir() else []:
        if not path.is_dir():
            continue
        match = number_of.fullmatch(path.name)
        number_in_name = int(match[1] or 1) if match else None
        recorded, number = _recorded_name(path)
        if recorded == name or (recorded is None and with_unnamed and match):
            number = number or number_in_name or 1
            yield number, path


def _recorded_name(path: Path) -> tuple[str | None, int | None]:
    """Return the recorded name and number of a run; a run of an earlier version records the name alone."""
    try:
        identity = json.loads((path / "run.json").read_text("utf-8"))
        return str(identity["name"]), int(identity["number"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        name = tomli.loads((path / "experiment.toml").read_text("utf-8"))["run"]["name"]
        return str(name), None
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _folder_name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _unused(parent: Path, stem: str, suffix: str = "") -> Path:
    """Return the first path that does not exist: ``stem``, ``stem-2``, ..., each with the suffix."""
    number = 1
    while (path := parent / f"{_folder_name(stem, number)}{suffix}").exists():
        number += 1
    return path


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically: readers, and a crash, see either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
