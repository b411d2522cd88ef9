"""What servers share: an address taken early, requests that wait worked on together, an orderly end.

Uvicorn and FastAPI serve; whatever needs the model happens in one thread.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import uvicorn

from titanrl.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["Batcher", "address", "bind_socket", "serve", "serve_in_thread"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a server in order."""

POLL_SECONDS = 0.5
"""Seconds after which whoever waits for work looks whether it was told to end."""

Row = TypeVar("Row")
Result = TypeVar("Result")


class Batcher(Generic[Row, Result]):
    """Works on the rows of all requests that wait, whenever the model is free, in the thread that runs it.

    Args:
        work: rows -> as many results.
    """

    def __init__(self, work: Callable[[list[Row]], Sequence[Result]]) -> None:
        self._work = work
        self._waiting: queue.SimpleQueue[tuple[Sequence[Row], Future[list[Result]]] | None]
        self._waiting = queue.SimpleQueue()

    def start(self) -> Self:
        """Runs it in a thread of its own."""
        threading.Thread(target=self.run, daemon=True, name="titanrl-batches").start()
        return self

    def submit(self, rows: Sequence[Row]) -> Future[list[Result]]:
        """Returns what will hold the results of the rows, in order; callable from any thread."""
        result: Future[list[Result]] = Future()
        self._waiting.put((rows, result))
        return result

    def __call__(self, rows: Sequence[Row]) -> list[Result]:
        """Returns the results of the rows, in order; callable from any thread."""
        return self.submit(rows).result()

    def close(self) -> None:
        """Ends it after what was asked so far; nothing may be asked any more."""
        self._waiting.put(None)

    def run(self) -> None:
        """Works until it is closed."""
        while True:
            jobs = [self._next()]
            while not self._waiting.empty():
                jobs.append(self._waiting.get())
            asked = [job for job in jobs if job is not None and job[1].set_running_or_notify_cancel()]
            if asked:
                self._answer(asked)
            if None in jobs:
                return

    def _next(self) -> tuple[Sequence[Row], Future[list[Result]]] | None:
        # Not one wait without end: a signal that comes just before it would be handled when it is over.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._waiting.get(timeout=POLL_SECONDS)

    def _answer(self, jobs: list[tuple[Sequence[Row], Future[list[Result]]]]) -> None:
        try:
            results = iter(self._work([row for rows, _ in jobs for row in rows]))
        except Exception as error:  # Whatever the model raises, who asked must learn it.
            for _, result in jobs:
                result.set_exception(error)
        else:
            for rows, result in jobs:
                result.set_result([next(results) for _ in rows])


def bind_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that has taken the address, and refuses connections until it is served.

    Args:
        port: 0: a free one.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(where)
    except OSError as error:
        reason = error.strerror or error
        text = f"--host {host} --port {port} cannot be listened at: {reason}; choose another."
        raise ConfigError(text) from None
    return taken


def address(taken: socket.socket) -> str:
    """Returns a socket's address as clients write it: ``http://127.0.0.1:8000``."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, taken: socket.socket) -> None:
    """Serves an application until Ctrl-C; requests that are there by then are answered first.

    A second Ctrl-C does not wait for them.
    """
    with contextlib.suppress(KeyboardInterrupt):
        _server(app).run(sockets=[taken])


def serve_in_thread(batcher: Batcher[Any, Any], app: FastAPI, taken: socket.socket) -> None:
    """Serves as ``serve`` does, from another thread, while this one works on what is asked.

    Some models want to be asked in the thread that loaded them, as vLLM does on a CPU.
    """
    server = _server(app)

    def answer() -> None:
        try:
            server.run(sockets=[taken])
        finally:
            batcher.close()

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, server.handle_exit) for number in STOP_SIGNALS}
    thread = threading.Thread(target=answer, name="titanrl-http")
    thread.start()
    try:
        batcher.run()
        thread.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="warning"))
