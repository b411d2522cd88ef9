"""The end of a process together with its parent, so that a killed command leaves no process behind."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
"""Interval of the checks where the kernel cannot wait for another process."""


def end_with_parent(parent: int, *, forked_by_main_thread: bool = False) -> None:
    """Kill this process as soon as the process ``parent`` has ended, or now if it has.

    A thread waits for the end of ``parent``. It needs Python's interpreter lock, so a call into C code that
    keeps the lock delays it.

    Args:
        parent: process id, as the parent itself read it; a child that asks for its parent may get the process
            that adopted it.
        forked_by_main_thread: whether the main thread of ``parent`` created this process. The Linux kernel
            then kills this process itself, whatever it is doing, even while it is stopped. Must be false for
            children of other threads: the kernel kills them when their thread ends.
    """
    if forked_by_main_thread and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    try:
        # Opened here: a later thread might find another process with the same number.
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        _die()
    except (AttributeError, OSError):  # No Linux, or an old one.
        descriptor = -1
    thread = threading.Thread(target=_wait, args=(parent, descriptor), daemon=True, name="titanrl-parent")
    thread.start()


def _wait(parent: int, descriptor: int) -> None:
    """Wait until the parent has ended, then kill this process."""
    if descriptor >= 0:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll():
            pass
    else:
        while _exists(parent):
            time.sleep(POLL_SECONDS)
    _die()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _die() -> None:
    # No clean-up: it could write, and the files may already belong to a resumed run.
    os.kill(os.getpid(), signal.SIGKILL)
