"""JSON requests to HTTP servers: one deadline for everything, retries with backoff, a limit on replies."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from titanrl.errors import TrainingError

# Importing asyncio, httpx, anyio and tenacity would slow the start of every command; few runs use a server.
if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

__all__ = [
    "MalformedReply",
    "ServerTimeout",
    "ServerUnavailable",
    "fetch_json",
    "json_client",
    "request_json",
]

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 8.0
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that are retried."""
REFUSING_STATUSES = frozenset({401, 402, 403, 404, 405})
"""HTTP statuses that concern the address or the credential, not one request."""
MAX_ERROR_BYTES = 500
"""Number of bytes of an error reply to read."""
MAX_REPLY_BYTES = 64 * 2**20
"""Largest reply, decompressed."""
MAX_REDIRECTS = 5


class ServerTimeout(TrainingError):
    """Raised when a server does not reply within the timeout."""


class MalformedReply(TrainingError):
    """Raised when a server replies with something other than JSON, or with too much."""


class ServerUnavailable(TrainingError):
    """Raised when a server cannot be reached, or rejects the address or the credential."""


class _Temporary(Exception):
    """A problem that may be gone at the next attempt."""

    def __init__(self, problem: str, kind: type[TrainingError], pause_seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.kind = kind
        self.pause_seconds = pause_seconds
        """Least pause that the server asks for."""


def json_client(headers: Mapping[str, str] | None = None, *, connections: int = 1) -> httpx.AsyncClient:
    """Returns a client for ``fetch_json``. It takes proxies and certificates from the environment.

    The client follows no redirect by itself; ``fetch_json`` follows those that stay on one origin.

    Args:
        headers: additional HTTP headers of every request.
        connections: number of concurrent connections.
    """
    import httpx

    # No timeout of its own: it would count each read, and fetch_json has a deadline for all of them.
    return httpx.AsyncClient(  # nosec B113
        headers={"Accept-Encoding": "identity", **(headers or {})},
        timeout=None,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        follow_redirects=False,
        trust_env=True,
    )


async def fetch_json(
    client: httpx.AsyncClient,
    url: str,
    payload: Any = None,
    *,
    timeout_seconds: float,
    retries: int | None = None,
    max_bytes: int = MAX_REPLY_BYTES,
) -> Any:
    """Sends a GET request, or a POST request with ``payload``, and returns the JSON reply.

    Without a connection, or on a status that may be temporary (429, 503, ...), it retries after 0.25 s,
    then doubles the pause each time, up to 8 s, or waits as long as the server's Retry-After says.
    Redirects are followed on the same origin only, so neither credential nor content reaches another host.

    Args:
        client: as ``json_client`` returns it.
        url: address of the server's resource.
        payload: value to send as JSON; None sends a GET request.
        timeout_seconds: limit for everything together: connecting, attempts, pauses and the whole reply.
        retries: attempts after the first; None: as many as the timeout allows.
        max_bytes: limit of the reply.

    Raises:
        ServerTimeout: the server accepts the connection but exceeds the timeout.
        MalformedReply: the reply is not JSON, or too large.
        ServerUnavailable: the server cannot be reached, or rejects the address or the credential.
        TrainingError: the server rejects the request. All messages name the url.
    """
    import asyncio

    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_before_delay

    stop = stop_before_delay(timeout_seconds)
    attempts = AsyncRetrying(
        retry=retry_if_exception_type(_Temporary),
        wait=_pause_seconds,
        stop=stop if retries is None else stop | stop_after_attempt(retries + 1),
        sleep=_pause,
        reraise=True,
    )
    data = None if payload is None else json.dumps(payload, allow_nan=False).encode()
    try:
        async with asyncio.timeout(timeout_seconds):
            content: bytes = await attempts(_attempt, client, url, data, max_bytes)
    except TimeoutError:
        raise ServerTimeout(_message(url, f"did not reply within {timeout_seconds:g} s")) from None
    except _Temporary as error:
        count = attempts.statistics.get("attempt_number", 1)
        raise error.kind(_message(url, f"{error} (attempts: {count})")) from None
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(_message(url, f"did not return JSON: {error}")) from None


def request_json(
    url: str,
    payload: Any = None,
    *,
    timeout_seconds: float,
    retries: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Sends one request as ``fetch_json`` does, and waits for the reply; an interrupt abandons it.

    Args:
        url: as for ``fetch_json``.
        payload: as for ``fetch_json``.
        timeout_seconds: as for ``fetch_json``.
        retries: as for ``fetch_json``.
        headers: additional HTTP headers.

    Raises:
        TrainingError: as for ``fetch_json``.
    """
    from anyio.from_thread import start_blocking_portal

    async def request() -> Any:
        async with json_client(headers) as client:
            return await fetch_json(client, url, payload, timeout_seconds=timeout_seconds, retries=retries)

    # A loop in a thread of its own: notebooks already run one in this thread.
    with start_blocking_portal(name="titanrl-http") as portal:
        return portal.call(request)


async def _attempt(client: httpx.AsyncClient, url: str, data: bytes | None, max_bytes: int) -> bytes:
    """Returns the content of a successful reply.

    Raises:
        _Temporary: another attempt may succeed.
        TrainingError: no attempt will.
    """
    import httpx

    try:
        method, headers = ("GET", {}) if data is None else ("POST", {"Content-Type": "application/json"})
        request = client.build_request(method, url, content=data, headers=headers)
        for _ in range(MAX_REDIRECTS):
            response = await client.send(request, stream=True)
            try:
                if response.next_request is None:
                    return await _content(url, response, max_bytes)
                request = _same_origin(url, request, response.next_request)
            finally:
                await response.aclose()
    except httpx.TransportError as error:
        raise _Temporary(f"cannot be reached: {_cause(error)}", ServerUnavailable) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnavailable(_message(url, f"cannot be requested: {error}")) from None
    raise ServerUnavailable(_message(url, f"redirects more than {MAX_REDIRECTS} times"))


async def _content(url: str, response: httpx.Response, max_bytes: int) -> bytes:
    content = bytearray()
    limit = max_bytes if response.is_success else MAX_ERROR_BYTES
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > limit:
            break
    if response.is_success:
        if len(content) > max_bytes:
            raise MalformedReply(_message(url, f"replied with more than {max_bytes} bytes"))
        return bytes(content)
    text = content[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    problem = f"replied {response.status_code} {response.reason_phrase}: {text}"
    if response.status_code in RETRIED_STATUSES:
        raise _Temporary(problem, TrainingError, _retry_after(response))
    refused = response.status_code in REFUSING_STATUSES or response.is_redirect
    raise (ServerUnavailable if refused else TrainingError)(_message(url, f"{problem} (attempts: 1)"))


def _same_origin(url: str, request: httpx.Request, following: httpx.Request) -> httpx.Request:
    """Returns the request of a redirect, unless it goes to another origin or drops the content."""
    before, after = request.url, following.url
    if (before.scheme, before.host, before.port) != (after.scheme, after.host, after.port):
        problem = f"redirects to another server, {_shown(str(after))}, which is not followed"
    elif following.method != request.method:
        problem = f"redirects to {_shown(str(after))} without the content of the request"
    else:
        return following
    raise ServerUnavailable(_message(url, f"{problem}; give the final address"))


def _retry_after(response: httpx.Response) -> float:
    """Returns the seconds of the header Retry-After; 0 without one or with a date."""
    text = response.headers.get("Retry-After", "")
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0.0


def _pause_seconds(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    least = error.pause_seconds if isinstance(error, _Temporary) else 0.0
    exponent = min(state.attempt_number - 1, 16)
    return max(least, min(FIRST_PAUSE_SECONDS * 2.0**exponent, MAX_PAUSE_SECONDS))


async def _pause(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _cause(error: BaseException) -> str:
    """Returns the reason of the system, such as "Connection refused", which httpx wraps several times."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    numbers = [each.errno for each in causes if isinstance(each, OSError) and each.errno]
    reasons = [os.strerror(number) for number in numbers if number > 0]
    return reasons[-1] if reasons else str(error) or type(error).__name__


def _shown(url: str) -> str:
    """Returns an address without a user's name and password."""
    return re.sub(r"//[^/?#]*@", "//", url)


def _message(url: str, problem: str) -> str:
    return (
        f"{_shown(url)} {problem}; check that the server is running and not overloaded, or raise "
        "timeout_seconds."
    )
