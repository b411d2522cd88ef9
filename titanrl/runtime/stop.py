"""Requests to stop a command, by a signal: it ends its step or abandons sampling, saves, and exits."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from titanrl.runtime import status

__all__ = [
    "FORCED",
    "SIGNALS",
    "STOPPED",
    "StopRequested",
    "abandonable",
    "completing",
    "forced_code",
    "is_listening",
    "listening",
    "request",
    "requested",
    "write_line",
]

STOPPED = 75
"""Exit code of a command that was asked to stop and has saved its state: EX_TEMPFAIL, "try again later"."""
FORCED = 128
"""Added to the number of the signal that ended a command before it had saved."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
NOTHING = "nothing needed saving."
SAME_SECONDS = 1.0
"""Signals that arrive this soon after the first count as the same request: a launcher's signal often reaches
a process twice, directly and passed on by its parent."""


class StopRequested(BaseException):
    """A stop was requested, and this command ends early; the message says where it can go on.

    Not an Exception, so that components that handle their own errors let it pass.

    Args:
        message: what was done and saved.
        is_saved: whether calling the command again continues here.
    """

    def __init__(self, message: str, *, is_saved: bool = True) -> None:
        super().__init__(message)
        self.is_saved = is_saved


class _Listener:
    """The signals of this process, and the thread that notices them even while the main thread computes."""

    def __init__(self, seconds: float, on_request: Callable[[str], None]) -> None:
        self.reason = ""
        self.depth = 0
        """Number of nested ``abandonable`` blocks."""
        self.is_completing = False
        self.number = int(signal.SIGTERM)
        self._seconds, self._on_request = seconds, on_request
        self._began = 0.0
        self._lock = threading.RLock()  # A handler may interrupt another one.
        self._main = threading.main_thread().ident
        self._ours, self._theirs = socket.socketpair()
        for each in (self._ours, self._theirs):
            each.setblocking(False)
        self._previous: dict[int, object] = {}

    def start(self) -> None:
        for number in (*SIGNALS, signal.SIGURG):
            # A signal that the parent process had ignored, as nohup does, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._interrupt)
        # Python runs handlers between two instructions of the main thread, which may be in a long call; the
        # number of a signal is written to this socket when it arrives.
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True, name="titanrl-signals").start()

    def stop(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._theirs.close()  # Ends the thread.

    def begin(self, reason: str, number: int) -> None:
        """Note a request; later ones change nothing."""
        with self._lock:
            if self.reason:
                return
            self._began, self.number, self.reason = time.monotonic(), number, reason
        self._on_request(reason)
        assert self._main is not None
        signal.pthread_kill(self._main, signal.SIGURG)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Run in the main thread: abandon work that may be abandoned."""
        del frame
        if number in SIGNALS and not self.reason:
            self._note(number)
        if self.reason and self.depth:
            self.depth = 0
            raise StopRequested(NOTHING)

    def _note(self, number: int) -> None:
        self.begin(signal.Signals(number).name, number)

    def _watch(self) -> None:
        """Read signals as they arrive; end the process at the second one, and when the time is over."""
        self._ours.setblocking(True)
        while True:
            left = self._began + self._seconds - time.monotonic() if self.reason else None
            if left is not None and left <= 0:
                self._end(f"did not stop within [run] stop_seconds = {self._seconds:g}")
            self._ours.settimeout(left)
            try:
                received = self._ours.recv(64)
            except TimeoutError:
                continue
            if not received:
                return
            for number in received:
                if number not in SIGNALS:
                    continue
                is_second = bool(self.reason) and time.monotonic() - self._began > SAME_SECONDS
                if is_second:
                    self.number = number
                    self._end(f"ended at once by a second signal, {signal.Signals(number).name}")
                self._note(number)

    def _end(self, reason: str) -> NoReturn:
        write_line(f"{reason}, in {status.describe()}; nothing was saved after the newest checkpoint.")
        status.update(end="reported")
        os._exit(FORCED + self.number)


_listener: _Listener | None = None


@contextmanager
def listening(
    seconds: float,
    *,
    on_request: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Turn SIGTERM, SIGINT and SIGUSR1 into requests to stop, within the block; call it in the main thread.

    The first signal is a request. A second one ends the process at once, and so does the end of the time.

    Args:
        seconds: time from the request to the end of the process.
        on_request: called with the reason of the first request, from any thread.
    """
    global _listener
    assert _listener is None, "this process listens already"
    _listener = listener = _Listener(seconds, on_request)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        _listener = None


def is_listening() -> bool:
    """Return whether signals are requests here; the same on every rank of a command."""
    return _listener is not None


def requested() -> str:
    """Return the reason why this process was asked to stop, such as "SIGTERM"; "" if it was not."""
    return "" if _listener is None else _listener.reason


def request(reason: str) -> None:
    """Ask this process to stop, because another rank was asked; callable from any thread."""
    if _listener is not None:
        _listener.begin(reason, int(signal.SIGTERM))


def forced_code() -> int:
    """Return the exit code of a command that ends without having saved: 128 + the signal's number."""
    return FORCED + (signal.SIGTERM if _listener is None else _listener.number)


@contextmanager
def abandonable() -> Iterator[None]:
    """Let a request to stop end the block's work, by raising ``StopRequested``.

    The work must hold no collectives, and leave nothing behind that the saved state does not hold. The block
    does nothing outside ``listening`` and within ``completing``.
    """
    listener = _listener
    if listener is None or listener.is_completing:
        yield
        return
    listener.depth += 1
    if listener.reason:
        listener.depth = 0
        raise StopRequested(NOTHING)
    try:
        yield
    finally:
        listener.depth = max(listener.depth - 1, 0)


@contextmanager
def completing() -> Iterator[None]:
    """Complete the block's work although a stop is requested."""
    if _listener is None:
        yield
        return
    _listener.is_completing = True
    try:
        yield
    finally:
        if _listener is not None:
            _listener.is_completing = False


def write_line(text: str) -> None:
    """Write a line to stderr at once; in a terminal, show the cursor that a live view has hidden."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    try:
        os.write(2, f"{show_cursor}{text}\n".encode())
    except OSError:
        sys.stderr = None  # The terminal is gone.
