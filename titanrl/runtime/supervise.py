"""The parent of a command's processes: it passes signals on, and reports an end without a report."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from titanrl.runtime import status
from titanrl.runtime.parent import end_with_parent
from titanrl.runtime.stop import SIGNALS, STOPPED, write_line

__all__ = ["LOST", "Ended", "continue_with", "ended_silently", "fork", "forwarding"]

LOST = 70
"""Exit code of a command of which a process ended or stopped without reporting an error: EX_SOFTWARE."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process."""

    code: int
    """Its exit code; minus the signal's number if a signal killed it."""
    status: dict[str, Any] = field(default_factory=dict)
    """What it did last, see ``status``."""

    @property
    def is_reported(self) -> bool:
        """Whether it ran to its end, or printed why it did not."""
        end = self.status.get("end")
        return end == "finished" or (end == "reported" and self.code != 0)

    def __str__(self) -> str:
        if self.code < 0:
            cause = f"was killed by {signal.Signals(-self.code).name}"
            cause += " (the system ran out of memory?)" * (self.code == -signal.SIGKILL)
        else:
            cause = f"ended with exit code {self.code}, without finishing or reporting an error"
        return f"{cause}, in {status.describe(self.status)}"


def continue_with(words: Sequence[str], last: dict[str, Any]) -> str:
    """Return how to continue a command, as a line for the user.

    Args:
        words: the command line without the name of the program.
        last: the last status of one of its processes.
    """
    words = [*words]
    if words[:1] == ["train"] and "--resume" not in words and last.get("checkpoint") is not None:
        words.append("--resume")
    return f"continue with: {shlex.join(['titanrl', *words])}"


@contextmanager
def forwarding(pids: Sequence[int]) -> Iterator[list[int]]:
    """Pass the signals that stop a command on to its processes, within the block.

    Args:
        pids: the processes; entries may be removed, and signals that come before entries are added reach
            these as well.

    Yields:
        the numbers of the signals received so far.
    """
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        for pid in [*pids]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    previous = {
        number: signal.signal(number, pass_on)
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def fork(words: Sequence[str], *, is_spokesman: bool = True) -> None:
    """Continue in a child process; the calling process waits for it and exits with its exit code.

    The child's end is reported if it did not report it itself: a signal, or user code that ends the process.
    Call it before threads are started and frameworks are loaded.

    Args:
        words: the command line without the name of the program.
        is_spokesman: whether to print how to continue; one rank of several does.
    """
    descriptor, parent = status.create(), os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pids: list[int] = []
    # Signals wait until the parent knows the child, and the child no longer has the parent's handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with forwarding(pids) as received:
        pid = os.fork()
        if pid:
            pids.append(pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            _, code = os.waitpid(pid, 0)
            pids.clear()
    if not pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        end_with_parent(parent, forked_by_main_thread=True)
        status.attach(descriptor)
        return
    ended = Ended(os.waitstatus_to_exitcode(code), status.read(descriptor))
    sys.exit(exit_code(ended, words, received, is_spokesman=is_spokesman))


def exit_code(ended: Ended, words: Sequence[str], received: Sequence[int], *, is_spokesman: bool) -> int:
    """Return the exit code of a command with one process; print what the process did not.

    Args:
        ended: the end of the process.
        words: the command line.
        received: numbers of the signals that the command received.
        is_spokesman: whether to print how to continue.
    """
    code = ended.code
    if code < 0 and -code in received:  # Before it listened to signals: nothing was begun.
        return 128 - code
    if not ended.is_reported:
        write_line(f"the process of this command {ended}.")
        code = LOST
    if is_spokesman and (code in (LOST, STOPPED) or code > 128):
        write_line(continue_with(words, ended.status))
    return code


def ended_silently(rank: int, pid: int, ended: Ended) -> str:
    """Return the report of a rank that ended without one."""
    return f"rank {rank} on {os.uname().nodename} (process {pid}) {ended}; the other ranks are ended."
