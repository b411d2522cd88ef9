"""A program in a sandbox: its limits are watched, and it is killed with all its processes."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from titanrl.runtime.process_tree import tree, usage

__all__ = ["Limits", "SandboxError", "SandboxedProcess"]

WATCH_SECONDS = 0.05
"""Time between two looks at what a program uses."""
MAX_INODES = 4096
"""Files and folders in the scratch folder."""
SPARE_TASKS = 4
"""Tasks above the limit that the watch allows, for those of the sandbox itself."""
KILL_ROUNDS = 20
"""Passes over orphans, which may start new processes while they are killed."""


class SandboxError(RuntimeError):
    """A sandbox cannot be made on this machine; the text names the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one program with all its processes."""

    memory_mb: int = 512
    """Address space of each process, and memory of all together, MiB."""
    cpu_seconds: float = 10.0
    """CPU time of all processes together."""
    tasks: int = 32
    """Processes and threads."""
    open_files: int = 64
    """File descriptors per process."""
    file_mb: int = 16
    """Size of a file, MiB."""
    scratch_mb: int = 64
    """Size of the scratch folder, MiB."""

    def table(self) -> list[tuple[int, int]]:
        """Return the limits that the kernel enforces per process: number and value."""
        return [
            (resource.RLIMIT_AS, self.memory_mb << 20),
            (resource.RLIMIT_CPU, int(self.cpu_seconds) + 2),
            (resource.RLIMIT_FSIZE, self.file_mb << 20),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_NPROC, self.tasks),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
        ]


class SandboxedProcess:
    """A program in its sandbox.

    Args:
        popen: the process that was started: bwrap, or the program itself.
        pid: the program, which is process 1 of its namespace under bwrap.
        limits: its limits.
        folder: its scratch folder, removed at its end; None under bwrap.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        pid: int,
        limits: Limits,
        folder: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self._popen, self.pid, self._limits, self._folder = popen, pid, limits, folder
        self.stdout = popen.stdout
        self._is_isolated = folder is None
        self._handle = os.pidfd_open(pid)
        _alive.add(pid)

    def __enter__(self) -> SandboxedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._popen.returncode

    def exceeded(self) -> str:
        """Return the limit that the program exceeds now: memory, cpu, tasks or files; "" if none."""
        used, limits = usage(self.pid), self._limits
        if used.memory_bytes > limits.memory_mb << 20:
            return "memory"
        if used.cpu_seconds > limits.cpu_seconds + 1:
            return "cpu"
        if used.tasks > limits.tasks + SPARE_TASKS:
            return "tasks"
        if self._is_isolated:
            with contextlib.suppress(OSError):
                files = os.statvfs(f"/proc/{self.pid}/root/tmp")
                if files.f_files - files.f_ffree > MAX_INODES:
                    return "files"
        return ""

    def wait_readable(self, fd: int, end: float) -> str:
        """Wait until a descriptor is readable, and watch the limits meanwhile.

        Args:
            fd: the descriptor.
            end: ``time.monotonic()`` at which to give up.

        Returns:
            "", or the limit that was exceeded; the program is killed then.
        """
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return self._watch(lambda seconds: bool(poll.poll(seconds * 1000)), end)

    def wait(self, end: float) -> str:
        """Wait for the program's end; arguments and result as for ``wait_readable``."""

        def has_ended(seconds: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(seconds)
                return True
            return False

        return self._watch(has_ended, end)

    def _watch(self, is_done: Callable[[float], bool], end: float) -> str:
        while True:
            left = end - time.monotonic()
            if is_done(max(0.0, min(left, WATCH_SECONDS))):
                return ""
            killed_for = "wall time" if left <= 0 else self.exceeded()
            if killed_for:
                self.kill()
                return killed_for

    def kill(self) -> None:
        """Kill the program with all its processes, and remove its folder; does nothing the second time."""
        if self._handle < 0:
            return
        if self._popen.returncode is None:
            others = [] if self._is_isolated else tree(self.pid)[1:]
            # Under bwrap the death of process 1 ends its namespace, and then bwrap itself.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            for pid in others:
                _kill(pid)
            self._popen.wait()
        os.close(self._handle)
        self._handle = -1
        _alive.discard(self.pid)
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        if self._folder is not None:
            _kill_strays()
            with contextlib.suppress(OSError):
                self._folder.cleanup()


_alive: set[int] = set()
"""Programs that this process has started and not yet killed."""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_strays() -> None:
    """Kill the orphans of a program without a namespace; a worker adopts them and has no other children."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if getattr(spec, "name", "") != "titanrl.runtime.worker":
        return
    for _ in range(KILL_ROUNDS):
        keep = {os.getpid(), *(each for pid in _alive for each in tree(pid))}
        strays = [pid for pid in tree(os.getpid()) if pid not in keep]
        for pid in strays:
            _kill(pid)
        with contextlib.suppress(ChildProcessError):
            for pid in strays:
                os.waitpid(pid, os.WNOHANG)
        if not strays:
            return
