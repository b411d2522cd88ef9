"""Runs untrusted programs: without network, other processes, files of the machine, or unbounded resources.

``isolation = "strict"`` is bubblewrap: namespaces of its own, a read-only file system with the interpreter
and chosen packages, a scratch folder of limited size, a user without rights, a seccomp filter. ``"process"``
is for machines that do not permit that: only limits, an empty environment and a folder.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from titanrl.runtime import bubblewrap
from titanrl.runtime.bubblewrap import ENVIRONMENT, free_uid, missing_for_strict
from titanrl.runtime.process_tree import ControlGroup
from titanrl.runtime.sandbox_mounts import PACKAGES, base_python, is_reachable_by_all
from titanrl.runtime.sandboxed_process import SPARE_TASKS, Limits, SandboxedProcess, SandboxError

__all__ = [
    "Isolation",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxError",
    "SandboxedProcess",
    "missing_for_strict",
    "remove_leftovers",
]

Isolation = Literal["strict", "process"]

PREFIX = "titanrl-program-"
"""Begin of the names of scratch folders, before the process id of their owner."""
LEFTOVER_ROUNDS = 50
"""Attempts to remove control groups, whose killed processes may take a moment to end."""


class Result(NamedTuple):
    """The end of a program."""

    status: int | None
    """Exit status, negative for a signal; None if the program was killed."""
    stdout: bytes
    killed_for: str
    """Limit that the program exceeded: wall time, output, memory, cpu, tasks or files; else ''."""


class Sandbox:
    """Starts programs in sandboxes of one kind. Safe to use from one thread at a time.

    Args:
        limits: limits of each program.
        isolation: "strict" or "process".
        packages: distributions that Python programs may import, from the folder ``path``.
    """

    def __init__(
        self, limits: Limits, *, isolation: Isolation = "strict", packages: tuple[str, ...] = ()
    ) -> None:
        self._limits, self._isolation, self._packages = limits, isolation, packages
        self._group: ControlGroup | None = None
        self._has_tried_group = False
        if isolation == "strict" and (problem := missing_for_strict()):
            raise SandboxError(problem)

    @property
    def path(self) -> str:
        """Folder from which a program imports the packages."""
        return PACKAGES if self._isolation == "strict" else sysconfig.get_path("purelib")

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, max_output: int = 16 << 20
    ) -> Result:
        """Run a command to its end and return its status and output; its errors are discarded.

        Args:
            argv: the command; only the interpreter, ``base_python()``, and system libraries exist.
            stdin: what it reads.
            seconds: wall time.
            max_output: bytes of output above which it is killed.

        Raises:
            SandboxError: the sandbox cannot be made.
        """
        end, output, killed_for = time.monotonic() + seconds, b"", ""
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            with self.start(argv, stdin=file, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                fd = process.stdout.fileno()
                while not killed_for:
                    killed_for = process.wait_readable(fd, end)
                    chunk = b"" if killed_for else os.read(fd, 1 << 16)
                    if not chunk:
                        break
                    output += chunk
                    killed_for = "output" if len(output) > max_output else ""
                killed_for = killed_for or process.wait(end)
                return Result(None if killed_for else process.status, output[:max_output], killed_for)

    def start(
        self,
        argv: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
    ) -> SandboxedProcess:
        """Start a command; the returned process is a context manager that kills all that is left.

        Args:
            argv: as for ``run``.
            pass_fds: descriptors that the command inherits, beside the standard ones.
            stdin: its standard input.
            stdout: its standard output.

        Raises:
            SandboxError: the sandbox cannot be made.
        """
        if self._isolation == "process":
            return _start_process(argv, self._limits, pass_fds, (stdin, stdout))
        return bubblewrap.start(argv, self._limits, self._packages, pass_fds, (stdin, stdout), self._join)

    def close(self) -> None:
        """Remove the control group."""
        if self._group is not None:
            self._group.remove()
            self._group = None

    def _join(self, pid: int) -> None:
        """Put a process into the control group, where one is permitted; else the watch alone limits it."""
        if not self._has_tried_group:
            self._has_tried_group = True
            memory = self._limits.memory_mb + self._limits.scratch_mb
            self._group = ControlGroup.create(memory << 20, self._limits.tasks + SPARE_TASKS)
        if self._group is not None:
            try:
                self._group.add(pid)
            except OSError:
                self.close()


def remove_leftovers() -> None:
    """Remove control groups and scratch folders of processes that were killed before they could do it."""
    for _ in range(LEFTOVER_ROUNDS):
        if not ControlGroup.remove_leftovers():
            break
        time.sleep(0.02)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _start_process(
    argv: Sequence[str], limits: Limits, pass_fds: Sequence[int], streams: tuple[IO[bytes] | int, int]
) -> SandboxedProcess:
    """Start a program in a folder of its own with limits, as another user where this process is root."""
    folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
    is_reachable = is_reachable_by_all(base_python()) and is_reachable_by_all(folder.name)
    uid = free_uid() if os.geteuid() == 0 and is_reachable else None
    identity: dict[str, Any] = {}
    if uid is not None:
        os.chown(folder.name, uid, uid)
        identity = {"user": uid, "group": uid, "extra_groups": []}

    def set_limits() -> None:
        for name, value in limits.table():
            hard = resource.getrlimit(name)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (value, value))

    popen = subprocess.Popen(
        argv,
        cwd=folder.name,
        env=ENVIRONMENT | {"HOME": folder.name, "TMPDIR": folder.name},
        stdin=streams[0],
        stdout=streams[1],
        stderr=subprocess.DEVNULL,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=set_limits,
        **identity,
    )
    return SandboxedProcess(popen, popen.pid, limits, folder)
