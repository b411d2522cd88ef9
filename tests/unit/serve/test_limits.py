"""Limits of time and size, on a real connection: half-sent, endless and invalid requests end with a reply."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from titanrl.serve import http, limits
from titanrl.serve.replies import error_body

LIMIT = 10_000


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with the length of the body."""
    request = Request(scope, receive)
    await PlainTextResponse(str(len(await request.body())))(scope, receive, send)


class Idle:
    """A model without requests."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.run, self.close = self._ended.wait, self._ended.set


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HEADER_SECONDS", 0.5)
        patch.setattr(limits, "BODY_SECONDS", 0.6)
        with serving(app, api_key=None) as address:
            yield address


@contextmanager
def serving(app: Any, api_key: str | None) -> Iterator[tuple[str, int]]:
    servers: list[uvicorn.Server] = []
    with pytest.MonkeyPatch.context() as patch, closing(http.bind_socket("127.0.0.1", 0)) as bound:
        real = uvicorn.Server.__init__

        def record(self: uvicorn.Server, config: uvicorn.Config) -> None:
            real(self, config)
            servers.append(self)

        patch.setattr(uvicorn.Server, "__init__", record)
        guard = limits.Guard(app, max_bytes=LIMIT, error_body=error_body, api_key=api_key)
        bound.listen()
        given: dict[str, Any] = {"error_body": error_body, "drain_seconds": 2.0}
        arguments: Any = (Idle(), guard, bound)
        thread = threading.Thread(target=http.serve_in_thread, args=arguments, kwargs=given)
        thread.start()
        try:
            yield bound.getsockname()[:2]
        finally:
            while not servers:
                time.sleep(0.01)
            servers[0].should_exit = True
            thread.join(10)
            assert not thread.is_alive()


def talk(server: tuple[str, int], data: bytes, *, timeout: float = 5) -> bytes:
    """Send bytes and return everything that the server sends until it closes the connection."""
    with socket.create_connection(server, timeout=timeout) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def head(size: int, more: str = "") -> bytes:
    return f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n{more}\r\n".encode()


def error_of(reply: bytes) -> tuple[int, dict[str, Any]]:
    start, _, body = reply.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(body)["error"]


def test_body_reaches_the_application(server: tuple[str, int]) -> None:
    reply = talk(server, head(LIMIT, "Connection: close\r\n") + b"a" * LIMIT)
    assert reply.startswith(b"HTTP/1.1 200")
    assert reply.endswith(b"\r\n\r\n10000")


@pytest.mark.parametrize("data", [b"", b"POST / HTTP/1.1\r\nHost: a\r\nX-A", head(5)[:-2]])
def test_headers_that_do_not_arrive_end_the_connection(server: tuple[str, int], data: bytes) -> None:
    began = time.monotonic()
    assert talk(server, data) == b""
    assert 0.3 < time.monotonic() - began < 3


def test_headers_that_trickle_end_the_connection(server: tuple[str, int]) -> None:
    """Each piece in time does not extend the limit."""
    began = time.monotonic()
    with socket.create_connection(server, timeout=5) as connection, pytest.raises(OSError):  # noqa: PT012
        connection.sendall(b"POST / HTTP/1.1\r\nX-A: ")
        while time.monotonic() < began + 5:
            connection.sendall(b"a")
            time.sleep(0.05)
    assert time.monotonic() - began < 3


@pytest.mark.slow
def test_body_that_does_not_arrive_gets_408(server: tuple[str, int]) -> None:
    began = time.monotonic()
    status, error = error_of(talk(server, head(100) + b"half"))
    assert (status, error["code"]) == (408, "request_timeout")
    assert error["message"] == "the body did not arrive within 0.6 s."
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("factor", [1.01, 5, 100])
def test_large_body_gets_413(server: tuple[str, int], factor: float) -> None:
    """Also a client that sends the whole body before it reads gets the reply, up to eight times the limit."""
    size = int(LIMIT * factor)
    with socket.create_connection(server, timeout=5) as connection:
        connection.sendall(head(size))
        sent = min(size, 8 * LIMIT + 70_000)
        connection.sendall(b"a" * sent)
        received = b""
        while b"}}" not in received:
            received += connection.recv(65536)
    status, error = error_of(received)
    assert (status, error["code"]) == (413, "request_entity_too_large")
    assert error["message"] == "the body must have at most 10000 bytes; shorten the request."


def test_large_body_that_waits_for_permission_gets_413_at_once(server: tuple[str, int]) -> None:
    status, _ = error_of(talk(server, head(LIMIT + 1, "Expect: 100-continue\r\n")))
    assert status == 413


@pytest.mark.slow
def test_bodies_of_all_requests_together_are_limited() -> None:
    """Half-sent bodies count, and what is served or given up no longer does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HELD_BODIES", 2)
        with serving(app, api_key=None) as server:
            for _ in range(2):
                with contextlib.ExitStack() as stack:
                    for _ in range(2):
                        connection = stack.enter_context(socket.create_connection(server, timeout=5))
                        connection.sendall(head(LIMIT) + b"a" * (LIMIT - 1))
                    time.sleep(0.3)
                    status, error = error_of(talk(server, head(10) + b"a" * 10))
                    assert (status, error["code"]) == (503, "overloaded")
                time.sleep(0.3)
                request = head(LIMIT, "Connection: close\r\n") + b"a" * LIMIT
                assert talk(server, request).endswith(b"\r\n\r\n10000")


def test_chunked_body_has_the_same_limit(server: tuple[str, int]) -> None:
    start = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _ = error_of(talk(server, start + b"4e20\r\n" + b"a" * 20_000 + b"\r\n0\r\n\r\n"))
    assert status == 413


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_invalid_http_gets_an_error_in_openais_form(
    server: tuple[str, int], data: bytes, status: int
) -> None:
    with socket.create_connection(server, timeout=5) as connection:
        connection.sendall(data)
        received = connection.recv(65536)
    found, error = error_of(received)
    assert found == status
    assert error["message"].startswith("Invalid HTTP request received: ")


def test_connection_serves_several_requests(server: tuple[str, int]) -> None:
    with socket.create_connection(server, timeout=5) as connection:
        for body in (b"a", b"bb"):
            connection.sendall(head(len(body)) + body)
            assert connection.recv(65536).endswith(str(len(body)).encode())
            time.sleep(0.2)
        connection.sendall((head(1) + b"a") * 2)
        received = b""
        while received.count(b"HTTP/1.1 200") < 2:
            received += connection.recv(65536)


def test_wrong_key_is_refused_without_keeping_the_body() -> None:
    with serving(app, api_key="s\u00e9cret") as server:
        data = head(5, "Connection: close\r\n")
        status, error = error_of(talk(server, data + b"hello"))
        assert (status, error["code"]) == (401, "invalid_api_key")
        right = b"Authorization: Bearer s\xc3\xa9cret\r\n\r\n"
        assert talk(server, data[:-2] + right + b"hello").endswith(b"\r\n\r\n5")
