"""Questions to HTTP servers as JSON, asked again, ever later, while there is hope."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from titanrl.errors import TrainingError

__all__ = ["LateAnswer", "ask"]

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 8.0
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone at the next try."""
# No proxy: servers of rewards are the cluster's own, and what is asked is not for others.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LateAnswer(TrainingError):
    """A server took longer than the deadline."""


def ask(
    url: str,
    body: Any = None,
    *,
    deadline_seconds: float,
    retries: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Returns the JSON that a server answers: to a GET, or to a POST of ``body``.

    Where there is no connection, or a status that may pass (429, 503, ...), it waits 0.25 s, then twice as
    long each time, up to 8 s, and asks again.

    Args:
        deadline_seconds: for everything, pauses included. retries: questions after the first; None: as many
            as fit into the deadline. headers: further ones.

    Raises:
        LateAnswer: the server is there but slower than the deadline.
        TrainingError: it cannot be reached, refuses the question, or answers no JSON; names the url.
    """
    data = None if body is None else json.dumps(body).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    end, pause, asked = time.monotonic() + deadline_seconds, FIRST_PAUSE_SECONDS, 0
    while True:
        left = end - time.monotonic()
        try:
            request = urllib.request.Request(url, data, all_headers)
            with _opener.open(request, timeout=max(left, 0.001)) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(500).decode("utf-8", "replace")
            why, may_pass = f"answers {error.code} {error.reason}: {said}", error.code in PASSING
        except TimeoutError:
            raise LateAnswer(_message(url, f"gave no answer within {deadline_seconds:g} s")) from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(reason := getattr(error, "reason", None), TimeoutError):
                raise LateAnswer(_message(url, f"gave no answer within {deadline_seconds:g} s")) from reason
            why, may_pass = f"cannot be reached: {reason or error!r}", True
        except ValueError as error:
            why, may_pass = f"answers no JSON: {error}", False
        asked += 1
        pause_end = time.monotonic() + pause
        if not may_pass or pause_end >= end or (retries is not None and asked > retries):
            raise TrainingError(_message(url, f"{why} (asked {asked} times)"))
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _message(url: str, why: str) -> str:
    return f"{url} {why}; see that the server runs and is not overloaded, or raise deadline_seconds."
