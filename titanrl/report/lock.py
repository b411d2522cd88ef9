"""Lock of a run folder: one process writes it at a time, and a lock outlives no dead process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from titanrl.errors import ConfigError, TrainingError

__all__ = ["FolderLock", "Owner", "refuse_in_use"]

REFRESH_SECONDS = 30.0
"""How often the owner refreshes its lock."""
STALE_SECONDS = 300.0
"""Age at which the lock of a process that cannot be looked up, because it is on another host, is stale."""
START_TOLERANCE_SECONDS = 2.0
"""Clock adjustments shift the start time that the system reports for a process."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a lock."""

    host: str
    pid: int
    started: float
    """Unix time at which the process started; a later process with the same pid has another one."""
    namespace: str = ""
    """Namespace of the pid on Linux; containers on one host have their own."""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, psutil.Process(pid).create_time(), _pid_namespace())

    @property
    def is_local(self) -> bool:
        """Whether the process, if it lives, is visible from here."""
        return (self.host, self.namespace) == (socket.gethostname(), _pid_namespace())

    def is_alive(self) -> bool:
        """Return whether the process runs; only for a local one."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return bool(abs(process.create_time() - self.started) <= START_TOLERANCE_SECONDS)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # It exists.
            return True


class FolderLock:
    """A file that names the process that writes a folder; empty if none does.

    Acquiring is atomic: processes take turns under ``flock``. The lock of a dead process is taken over. A
    local owner is dead if no process has its pid and start time, one on another host if it has not refreshed
    the file for ``STALE_SECONDS``, by the clock of the file system.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner: Owner | None = None
        self._stop = threading.Event()
        self._refresher: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigError: a process that runs, or may run, holds it.
        """
        with _exclusive(self.path) as file:
            if (owner := _live_owner(file, self.path)) is not None:
                raise _in_use(self.path.parent, owner)
            self._owner = Owner.current()
            file.truncate(0)
            file.write(json.dumps(asdict(self._owner)) + "\n")
        self._refresher = threading.Thread(target=self._refresh, name="run-lock", daemon=True)
        self._refresher.start()

    def verify(self) -> None:
        """Check that this process still holds the lock.

        Raises:
            TrainingError: another process has taken it, because this one was suspended or cut off for long.
        """
        owner = _read(self.path)
        if owner != self._owner:
            raise TrainingError(
                f"{owner or 'no process'} now holds the lock of {str(self.path.parent)!r}. This process "
                "stops, so that the folder has one writer."
            )

    def release(self) -> None:
        """Give the lock up; nothing happens if this process does not hold it."""
        if self._owner is None:
            return
        self._stop.set()
        # The folder may be gone.
        with contextlib.suppress(OSError), _exclusive(self.path) as file:
            if _parse(file) == self._owner:
                file.truncate(0)
        self._owner = None

    def _refresh(self) -> None:
        while not self._stop.wait(REFRESH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def refuse_in_use(path: Path) -> None:
    """Raise ConfigError if a process that runs, or may run, holds a lock file."""
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        if (owner := _live_owner(file, path)) is not None:
            raise _in_use(path.parent, owner)


def _in_use(folder: Path, owner: Owner) -> ConfigError:
    remedy = "wait for it, or end it and try again"
    if not owner.is_local:
        minutes = f"{STALE_SECONDS / 60:.0f} minutes"
        remedy += f"; if it ended without releasing the folder, try again in {minutes}"
    return ConfigError(f"{str(folder)!r} is being written by {owner}; {remedy}.")


def _live_owner(file: IO[str], path: Path) -> Owner | None:
    owner = _parse(file)
    if owner is None:
        return None
    return owner if (owner.is_alive() if owner.is_local else _age(path) < STALE_SECONDS) else None


def _age(path: Path) -> float:
    """Return the seconds since a file was refreshed, by the clock of its file system."""
    probe = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def _exclusive(path: Path) -> Iterator[IO[str]]:
    """Open a file for reading and writing while no other process does."""
    with path.open("a+") as file:
        # Some network file systems have no flock; there two simultaneous calls may both succeed.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _read(path: Path) -> Owner | None:
    try:
        with path.open() as file:
            return _parse(file)
    except FileNotFoundError:
        return None


def _parse(file: IO[str]) -> Owner | None:
    """Return the owner that a lock file names; None if it is empty or broken."""
    try:
        return Owner(**json.loads(file.read()))
    except (ValueError, TypeError):
        return None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
