"""Questions to HTTP servers as JSON, asked again, ever later, while there is hope."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import TrainingError

# urllib and its ssl cost every command a part of its start; few runs ask a server.
if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request

__all__ = ["LateAnswer", "ask"]

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 8.0
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone at the next try."""
SHOWN_BYTES = 500
"""How much of a refusal is read and shown."""


class LateAnswer(TrainingError):
    """A server took longer than the deadline."""


def ask(
    url: str,
    body: Any = None,
    *,
    timeout_seconds: float,
    retries: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Returns the JSON that a server answers: to a GET, or to a POST of ``body``.

    Where there is no connection, or a status that may pass (429, 503, ...), it waits 0.25 s, then twice as
    long each time, up to 8 s, and asks again.

    Args:
        timeout_seconds: for everything, pauses included. retries: questions after the first; None: as many
            as fit into the deadline. headers: further ones.

    Raises:
        LateAnswer: the server is there but slower than the deadline.
        TrainingError: it cannot be reached, refuses the question, or answers no JSON; names the url.
    """
    from http.client import HTTPException
    from urllib.request import Request

    data = None if body is None else json.dumps(body).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    end, pause, asked = time.monotonic() + timeout_seconds, FIRST_PAUSE_SECONDS, 0
    while True:
        left = end - time.monotonic()
        try:
            answer = _answer(Request(url, data, all_headers), max(left, 0.001))
            if 200 <= answer.status < 300:
                return json.loads(answer.content)
            said = answer.content.decode("utf-8", "replace")
            why, may_pass = f"answers {answer.status} {answer.reason}: {said}", answer.status in PASSING
        except TimeoutError:
            raise LateAnswer(_message(url, f"gave no answer within {timeout_seconds:g} s")) from None
        except (OSError, HTTPException) as error:
            if isinstance(reason := getattr(error, "reason", None), TimeoutError):
                raise LateAnswer(_message(url, f"gave no answer within {timeout_seconds:g} s")) from reason
            why, may_pass = f"cannot be reached: {reason or error!r}", True
        except ValueError as error:
            why, may_pass = f"answers no JSON: {error}", False
        asked += 1
        pause_end = time.monotonic() + pause
        if not may_pass or pause_end >= end or (retries is not None and asked > retries):
            raise TrainingError(_message(url, f"{why} (asked {asked} times)"))
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Answer(NamedTuple):
    """What a server said."""

    status: int
    reason: str
    content: bytes
    """Of a refusal the first bytes only."""


def _answer(request: Request, seconds: float) -> Answer:
    from urllib.error import HTTPError

    try:
        with _opener().open(request, timeout=seconds) as response:
            return Answer(response.status, response.reason, response.read())
    except HTTPError as error:
        with error:
            return Answer(error.code, error.reason, error.read(SHOWN_BYTES))


@cache
def _opener() -> OpenerDirector:
    """No proxy: servers of rewards are the cluster's own, and what is asked is not for others."""
    from urllib.request import ProxyHandler, build_opener

    return build_opener(ProxyHandler({}))


def _message(url: str, why: str) -> str:
    return f"{url} {why}; see that the server runs and is not overloaded, or raise timeout_seconds."
