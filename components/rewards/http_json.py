"""JSON requests to HTTP servers, with retries and exponential backoff."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import TrainingError

# Importing urllib and ssl would slow the start of every command; few runs use a server.
if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request

__all__ = ["ServerTimeout", "request_json"]

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 8.0
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that are retried."""
MAX_ERROR_BYTES = 500
"""Number of bytes of an error reply to read."""


class ServerTimeout(TrainingError):
    """Raised when a server does not reply within the timeout."""


def request_json(
    url: str,
    payload: Any = None,
    *,
    timeout_seconds: float,
    retries: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Sends a GET request, or a POST request with ``payload``, and returns the JSON reply.

    Without a connection, or on a status that may be temporary (429, 503, ...), it retries after 0.25 s,
    then doubles the pause each time, up to 8 s.

    Args:
        url: address of the server's resource.
        payload: value to send as JSON; None sends a GET request.
        timeout_seconds: limit for all attempts and pauses together.
        retries: attempts after the first; None: as many as the timeout allows.
        headers: additional HTTP headers.

    Raises:
        ServerTimeout: the server accepts the connection but exceeds the timeout.
        TrainingError: the server cannot be reached, rejects the request, or does not return JSON;
            the message names the url.
    """
    from http.client import HTTPException
    from urllib.request import Request

    data = None if payload is None else json.dumps(payload).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    end, pause, attempts = time.monotonic() + timeout_seconds, FIRST_PAUSE_SECONDS, 0
    while True:
        remaining = end - time.monotonic()
        try:
            reply = _send(Request(url, data, all_headers), max(remaining, 0.001))
            if 200 <= reply.status < 300:
                return json.loads(reply.content)
            text = reply.content.decode("utf-8", "replace")
            problem = f"replied {reply.status} {reply.reason}: {text}"
            can_retry = reply.status in RETRIED_STATUSES
        except TimeoutError:
            raise ServerTimeout(_message(url, f"did not reply within {timeout_seconds:g} s")) from None
        except (OSError, HTTPException) as error:
            if isinstance(reason := getattr(error, "reason", None), TimeoutError):
                raise ServerTimeout(_message(url, f"did not reply within {timeout_seconds:g} s")) from reason
            problem, can_retry = f"cannot be reached: {reason or error!r}", True
        except ValueError as error:
            problem, can_retry = f"did not return JSON: {error}", False
        attempts += 1
        pause_end = time.monotonic() + pause
        if not can_retry or pause_end >= end or (retries is not None and attempts > retries):
            raise TrainingError(_message(url, f"{problem} (attempts: {attempts})"))
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


class HTTPReply(NamedTuple):
    """Reply of a server."""

    status: int
    reason: str
    content: bytes
    """Body of the reply; of an error, the first bytes only."""


def _send(request: Request, seconds: float) -> HTTPReply:
    """Sends one request; an HTTP error status is a reply, not an exception."""
    from urllib.error import HTTPError

    try:
        with _opener().open(request, timeout=seconds) as response:
            return HTTPReply(response.status, response.reason, response.read())
    except HTTPError as error:
        with error:
            return HTTPReply(error.code, error.reason, error.read(MAX_ERROR_BYTES))


@cache
def _opener() -> OpenerDirector:
    """Returns an opener without proxy: reward servers belong to the cluster, and requests must not leave
    it.
    """
    from urllib.request import ProxyHandler, build_opener

    return build_opener(ProxyHandler({}))


def _message(url: str, problem: str) -> str:
    return f"{url} {problem}; check that the server is running and not overloaded, or raise timeout_seconds."
