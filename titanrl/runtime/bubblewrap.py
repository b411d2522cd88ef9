"""Sandboxes by bubblewrap: namespaces, a file system of its own, and a user without rights."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from titanrl.runtime.sandbox_mounts import base_python, mounts
from titanrl.runtime.sandboxed_process import Limits, SandboxedProcess, SandboxError
from titanrl.runtime.seccomp import seccomp_filter

__all__ = ["ENVIRONMENT", "free_uid", "missing_for_strict", "start"]

START_SECONDS = 20.0
"""Time for the sandbox itself to start."""
FIRST_UID = 2_000_000_000
"""User ids from here on belong to no other process; a worker uses the one at its process id."""
ENVIRONMENT = {
    # A file system of the sandbox's own, not the machine's.
    "HOME": "/tmp",  # nosec B108
    "TMPDIR": "/tmp",  # nosec B108
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class _Mode(NamedTuple):
    """How bwrap makes a user without rights."""

    options: tuple[str, ...]
    prefix: tuple[str, ...]
    """Command before the program's own."""
    files: tuple[str, ...]
    """Files that the command needs."""


def _modes() -> list[_Mode]:
    """Return the ways to try, the stronger first."""
    in_user_namespace = _Mode(("--unshare-user", "--uid", "65534", "--gid", "65534"), (), ())
    uid, setpriv = free_uid(), shutil.which("setpriv")
    if os.geteuid() or uid is None or setpriv is None:
        return [in_user_namespace]
    setpriv = os.path.realpath(setpriv)
    rights = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    user = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--pdeathsig=KILL")
    as_root = _Mode(rights, (setpriv, *user, "--"), (setpriv,))
    return [as_root, in_user_namespace]


def free_uid() -> int | None:
    """Return a user id that no other process uses; None if this process's namespace has too few."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= FIRST_UID < first + count - (1 << 22):
            return FIRST_UID + os.getpid()
        if first <= 1000 and first + count >= 60_000:
            return 50_000 + os.getpid() % 10_000
    return None


@cache
def _mode() -> _Mode | None:
    """Return the first way that works on this machine."""
    return next((mode for mode in _modes() if _try(mode) is None), None)


def _try(mode: _Mode) -> str | None:
    """Start the interpreter in a sandbox; return what bwrap says if it fails."""
    command = [*_command(mode, mounts((), 1 << 20, mode.files), ()), base_python(), "-I", "-S", "-c", "pass"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=START_SECONDS, env=ENVIRONMENT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        None if done.returncode == 0 else done.stderr.decode(errors="replace").strip()[-300:] or "no message"
    )


@cache
def missing_for_strict() -> str:
    """Return why strict isolation cannot be had on this machine, with the remedy; "" if it can."""
    if sys.platform != "linux":
        return f"needs Linux with bubblewrap, and this is {sys.platform}; train in a Linux container."
    if shutil.which("bwrap") is None:
        return "needs bubblewrap, and bwrap is not installed; install it (apt-get install bubblewrap)."
    if _mode() is None:
        reason = _try(_modes()[-1])
        return (
            f"needs namespaces, which this machine refuses: {reason!r}; permit user namespaces, or start the "
            "container with the capability SYS_ADMIN and without its seccomp and AppArmor profiles."
        )
    return ""


def _command(mode: _Mode, file_system: Sequence[str], options: Sequence[str]) -> list[str]:
    bwrap = shutil.which("bwrap") or "bwrap"
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    flags = ["--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    return [bwrap, *namespaces, *flags, *mode.options, *options, *file_system, "--", *mode.prefix]


def start(
    argv: Sequence[str],
    limits: Limits,
    packages: tuple[str, ...],
    pass_fds: Sequence[int],
    streams: tuple[IO[bytes] | int, int],
    join: Callable[[int], None],
) -> SandboxedProcess:
    """Start a program under bwrap; limits are set before anything of it runs.

    Args:
        argv: the command.
        limits: the limits.
        packages: distributions that it may import.
        pass_fds: descriptors that it inherits.
        streams: its standard input and output.
        join: puts a process into a control group.

    Raises:
        SandboxError: the sandbox does not start.
    """
    mode = _mode()
    if mode is None:
        raise SandboxError(f"a sandbox {missing_for_strict()}")
    with contextlib.ExitStack() as stack:
        info, info_end = _pipe(stack)
        block, block_end = _pipe(stack)
        options = ["--info-fd", str(info_end.fileno()), "--block-fd", str(block.fileno())]
        fds = [*pass_fds, info_end.fileno(), block.fileno()]
        if (rules := seccomp_filter()) is not None:
            rules_file, rules_end = _pipe(stack)
            rules_end.write(rules)
            rules_end.close()
            options += ["--seccomp", str(rules_file.fileno())]
            fds.append(rules_file.fileno())
        popen = subprocess.Popen(
            [*_command(mode, mounts(packages, limits.scratch_mb << 20, mode.files), options), *argv],
            cwd="/",
            env=ENVIRONMENT,
            stdin=streams[0],
            stdout=streams[1],
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
        )
        info_end.close()
        try:
            process = SandboxedProcess(popen, _child_pid(info.fileno()), limits)
        except BaseException:
            popen.kill()
            popen.wait()
            raise
        try:
            _set_limits(limits, process.pid)
            join(process.pid)
            block_end.write(b"x")
        except OSError as error:
            process.kill()
            raise SandboxError(f"the sandbox did not start: {error}") from error
    return process


def _pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe, which are closed with the stack at the latest."""
    read, write = os.pipe()
    return (
        stack.enter_context(os.fdopen(read, "rb", buffering=0)),
        stack.enter_context(os.fdopen(write, "wb", buffering=0)),
    )


def _child_pid(fd: int) -> int:
    """Return the pid of the sandbox's first process, which bwrap writes as JSON."""
    text, end = b"", time.monotonic() + START_SECONDS
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(max(0.0, end - time.monotonic()) * 1000):
        chunk = os.read(fd, 4096)
        text += chunk
        with contextlib.suppress(ValueError):
            return int(json.loads(text)["child-pid"])
        if not chunk:
            break
    raise SandboxError(f"bwrap did not start a process, it wrote {text!r}; try it by hand.")


def _set_limits(limits: Limits, pid: int) -> None:
    for name, value in limits.table():
        hard = resource.prlimit(pid, name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, name, (value, value))
