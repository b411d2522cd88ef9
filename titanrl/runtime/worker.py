"""The worker process of ``worker_pool``: it runs one call at a time. Standard library only.

Protocol over one duplex connection with pickled messages: the parent sends (function, imports) once, and the
worker replies None after importing, or the error as text. It then replies to each (arguments, seconds) with
(value, failure).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from titanrl.runtime.parent import end_with_parent

__all__ = ["error_text"]

MEMORY_BYTES = 4 << 30
"""Address space of a worker."""
GRACE_SECONDS = 5.0
"""Time after a call's timeout at which the kernel ends a worker whose parent is gone."""
PR_SET_CHILD_SUBREAPER = 36


def _adopt_orphans() -> None:
    """Make orphaned descendants children of this process, not of init, so that the pool can kill them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def error_text(error: BaseException) -> str:
    """Return an exception's type and message, at most 500 characters, also if its ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:
        return type(error).__name__


def _run(function: Any, arguments: tuple[Any, ...], seconds: float) -> bytes:
    process = os.getpid()
    # If the parent dies during the call, the kernel ends this process; that works inside C code too.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
    try:
        return pickle.dumps((function(*arguments), None))
    # SystemExit and KeyboardInterrupt raised by graded code are failures of that item.
    except BaseException as error:
        return pickle.dumps((None, error_text(error)))
    finally:
        if os.getpid() != process:
            os._exit(0)  # A child that the function forked must not go on as a second worker.
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(fd: int) -> None:
    _adopt_orphans()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(fd)
    try:
        # The sender is the parent process.
        function, imports = pickle.loads(connection.recv_bytes())  # nosec B301
        for name in imports:
            importlib.import_module(name)
    except BaseException as error:
        connection.send_bytes(pickle.dumps(error_text(error)))
        return
    connection.send_bytes(pickle.dumps(None))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        arguments, seconds = pickle.loads(message)  # nosec B301
        connection.send_bytes(_run(function, arguments, seconds))


if __name__ == "__main__":
    os.chdir("/")
    end_with_parent(int(sys.argv[2]))
    main(int(sys.argv[1]))
