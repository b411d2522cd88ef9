"""The common part of the servers: binding the address first, batching of waiting requests, orderly shutdown.

uvicorn serves HTTP; one thread runs the model.
"""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import uvicorn

from titanrl.errors import ConfigError
from titanrl.serve.limits import KEEP_ALIVE_SECONDS, ErrorBody, TimedProtocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Batcher", "address", "bind_socket", "serve", "serve_in_thread"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that shut a server down in order."""

POLL_SECONDS = 0.5
"""Interval at which a batcher that waits for requests lets signal handlers run."""

BACKLOG = 2048
"""Connections that the system holds before they are accepted."""

Row = TypeVar("Row")
Result = TypeVar("Result")


class RunsInThread(Protocol):
    """A model that serves from the thread that calls ``run``."""

    def run(self) -> None:
        """Serve until ``close`` is called."""

    def close(self) -> None:
        """Stop after the requests submitted so far; callable from any thread."""


class Batcher(Generic[Row, Result]):
    """A queue of requests whose rows are computed together whenever the model is free.

    Args:
        compute: rows -> one result per row; runs in the thread that calls ``run``.
    """

    def __init__(self, compute: Callable[[list[Row]], Sequence[Result]]) -> None:
        self._compute = compute
        self._waiting: queue.SimpleQueue[tuple[Sequence[Row], Future[list[Result]]] | None]
        self._waiting = queue.SimpleQueue()

    def start(self) -> Self:
        """Run it in a thread of its own."""
        threading.Thread(target=self.run, daemon=True, name="titanrl-batches").start()
        return self

    def submit(self, rows: Sequence[Row]) -> Future[list[Result]]:
        """Return a future of the results of the rows, in order; callable from any thread."""
        result: Future[list[Result]] = Future()
        self._waiting.put((rows, result))
        return result

    def __call__(self, rows: Sequence[Row]) -> list[Result]:
        """Return the results of the rows, in order; callable from any thread."""
        return self.submit(rows).result()

    def close(self) -> None:
        """Stop after the requests submitted so far; no request may follow."""
        self._waiting.put(None)

    def run(self) -> None:
        """Compute results until ``close`` is called."""
        while True:
            jobs = [self._next()]
            while not self._waiting.empty():
                jobs.append(self._waiting.get())
            active = [job for job in jobs if job is not None and job[1].set_running_or_notify_cancel()]
            if active:
                self._compute_jobs(active)
            if None in jobs:
                return

    def _next(self) -> tuple[Sequence[Row], Future[list[Result]]] | None:
        # Not a single wait without a timeout: a signal just before it would be handled only afterwards.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._waiting.get(timeout=POLL_SECONDS)

    def _compute_jobs(self, jobs: list[tuple[Sequence[Row], Future[list[Result]]]]) -> None:
        try:
            results = iter(self._compute([row for rows, _ in jobs for row in rows]))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0][1].set_exception(error)
            else:
                # One of them may be at fault; the others get their results.
                for job in jobs:
                    self._compute_jobs([job])
        else:
            for rows, result in jobs:
                result.set_result([next(results) for _ in rows])


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; it refuses connections until it listens.

    Args:
        host: name or address of an interface.
        port: port number; 0: any free port.

    Raises:
        ConfigError: the address is in use or not available.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"--host {host} --port {port} is not available: {reason}; choose another."
        ) from None
    return bound


def address(bound: socket.socket) -> str:
    """Return the URL of a bound socket: ``http://127.0.0.1:8000``."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, bound: socket.socket, *, error_body: ErrorBody) -> None:
    """Serve an application until Ctrl-C, and complete pending requests; a second Ctrl-C drops them.

    Args:
        app: the application.
        bound: as ``bind_socket`` returns it.
        error_body: as for ``Guard``.
    """
    with contextlib.suppress(KeyboardInterrupt):
        _server(app, error_body, None).run(sockets=[bound])


def serve_in_thread(
    model: RunsInThread,
    app: ASGIApp,
    bound: socket.socket,
    *,
    error_body: ErrorBody,
    drain_seconds: float | None = None,
) -> None:
    """Serve HTTP in another thread while this thread runs the model; ends as ``serve`` does.

    Some models must run in the thread that loaded them, for example vLLM on a CPU.

    Args:
        model: computes the requests of the application.
        app: the application.
        bound: as ``bind_socket`` returns it.
        error_body: as for ``Guard``.
        drain_seconds: time for pending requests after the first signal; None: as long as they take.
    """
    server = _server(app, error_body, drain_seconds)

    def serve_http() -> None:
        try:
            server.run(sockets=[bound])
        finally:
            model.close()

    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, server.handle_exit) for number in STOP_SIGNALS}
    thread = threading.Thread(target=serve_http, name="titanrl-http")
    thread.start()
    try:
        model.run()
        thread.join()
    except BaseException:
        server.should_exit = True
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _server(app: ASGIApp, error_body: ErrorBody, drain_seconds: float | None) -> uvicorn.Server:
    protocol = type("Protocol", (TimedProtocol,), {"error_body": staticmethod(error_body)})
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            # Warnings are about what clients send; the reply says it.
            log_level="error",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=None if drain_seconds is None else math.ceil(drain_seconds),
        )
    )
