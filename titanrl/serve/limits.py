"""Limits that hold before a request reaches an application: time, size and key."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["KEEP_ALIVE_SECONDS", "ErrorBody", "Guard", "TimedProtocol"]

HEADER_SECONDS = 20.0
"""Time from a connection, or the first byte of a later request, to the end of the headers."""
KEEP_ALIVE_SECONDS = 75
"""Time that an idle connection stays open; longer than clients keep theirs, which may be in use again."""
BODY_SECONDS = 30.0
"""Time in which the body of a request must arrive."""
HELD_BODIES = 32
"""How many times the limit is held of all bodies together."""
DISCARDED_BODIES = 8
"""How many times the limit is read and discarded of a larger body, so that its sender gets the reply."""

ErrorBody = Callable[[int, str], dict[str, Any]]


class _TooLarge(Exception):
    pass


class _Full(Exception):
    pass


class _Gone(Exception):
    """The client has left."""


class Guard:
    """Reads the whole body of each request in time, within a limit, and passes it on.

    Args:
        app: the application.
        max_bytes: largest body.
        error_body: status, message -> JSON body of a reply with an error.
        api_key: key that requests must carry; None: none is needed. ``/health`` needs none.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, error_body: ErrorBody, api_key: str | None = None
    ) -> None:
        self._app, self._max_bytes, self._error_body = app, max_bytes, error_body
        self._num_held = 0
        """Bytes of the bodies of all requests that are being served."""
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_known = self._key is None or scope["path"] == "/health"
        if not is_known:
            sent = headers.get("Authorization", "").encode("latin-1")
            is_known = secrets.compare_digest(sent, self._key or b"")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(headers, receive, keeps=is_known)
        except TimeoutError:
            await self._refuse(
                scope, send, HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s."
            )
        except _TooLarge:
            text = f"the body must have at most {self._max_bytes} bytes; shorten the request."
            await self._refuse(scope, send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        except _Full:
            text = "too many large requests are being served; try again later."
            await self._refuse(scope, send, HTTPStatus.SERVICE_UNAVAILABLE, text)
        except _Gone:
            return
        else:
            if not is_known:
                text = "the API key is missing or wrong; send it as Authorization: Bearer KEY."
                await self._refuse(scope, send, HTTPStatus.UNAUTHORIZED, text)
                return
            try:
                await self._app(scope, _replay(body, receive), send)
            finally:
                self._num_held -= len(body)

    async def _body(self, headers: Headers, receive: Receive, *, keeps: bool) -> bytes:
        """Return the body; read more than the limit only to discard it."""
        stated = headers.get("Content-Length", "0")
        limit = self._max_bytes * DISCARDED_BODIES
        # Such clients wait with the body; the others send theirs in any case.
        if "Expect" in headers and int(stated) > self._max_bytes:
            raise _TooLarge
        body, size = bytearray(), 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size <= self._max_bytes and keeps:
                    body += chunk
                    self._num_held += len(chunk)
                    if self._num_held > self._max_bytes * HELD_BODIES:
                        raise _Full
                elif body:
                    self._num_held -= len(body)
                    body.clear()
                if not message.get("more_body", False):
                    break
                if size > limit:
                    raise _TooLarge
            if size > self._max_bytes:
                raise _TooLarge
        except BaseException:
            self._num_held -= len(body)
            raise
        return bytes(body)

    async def _refuse(self, scope: Scope, send: Send, status: HTTPStatus, message: str) -> None:
        headers = {"Connection": "close"}
        if status == HTTPStatus.UNAUTHORIZED:
            headers = {"WWW-Authenticate": "Bearer"}
        elif status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = "1"
        await JSONResponse(self._error_body(status, message), status, headers)(scope, _nothing, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that returns the body once, and then what follows."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with a time limit for headers and JSON replies to invalid HTTP.

    uvicorn 0.54 closes idle connections, but waits without end for the rest of a request's headers.
    """

    error_body: ErrorBody = staticmethod(lambda status, message: {"detail": message})
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._header_timer is None and not self._has_request:
            self._arm()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._has_request:
            self._disarm()

    @property
    def _has_request(self) -> bool:
        """Whether the headers of a request have arrived, and its reply is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        problem = sys.exception()
        status = getattr(problem, "error_status_hint", HTTPStatus.BAD_REQUEST)
        body = JSONResponse(self.error_body(status, f"{msg.rstrip('.')}: {problem}."), status)
        headers = [*body.raw_headers, (b"connection", b"close")]
        # A reply may have begun, and then nothing can be added to it.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            start = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
            for event in (start, h11.Data(data=bytes(body.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _arm(self) -> None:
        self._disarm()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
