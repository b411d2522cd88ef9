"""Requests to a judge's server, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.components.rewards.http_json import fetch_json, json_client
from titanrl.errors import TrainingError

if TYPE_CHECKING:
    import httpx

__all__ = ["JudgeServer", "ask_all"]

MAX_REPLY_BYTES = 4 * 2**20
"""Limit of a judge's reply."""


class JudgeServer(NamedTuple):
    """The address of a judge, and how it is asked."""

    url: str
    model: str
    headers: Mapping[str, str]
    timeout_seconds: float
    retries: int
    concurrency: int


def ask_all(
    server: JudgeServer, requests: Sequence[str], read: Callable[[str], float | str]
) -> list[float | str | TrainingError]:
    """Returns what each reply says, the reason why it says nothing, or the error of its request.

    Args:
        server: the judge.
        requests: text of each request.
        read: reply -> score, or why it states none.
    """
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal(name="titanrl-judge") as portal:
        return portal.call(_ask_all, server, requests, read)


async def _ask_all(
    server: JudgeServer, requests: Sequence[str], read: Callable[[str], float | str]
) -> list[float | str | TrainingError]:
    import asyncio

    limit = asyncio.Semaphore(server.concurrency)
    async with json_client(server.headers, connections=server.concurrency) as client:

        async def ask(request: str) -> float | str | TrainingError:
            async with limit:
                return await _ask(client, server, request, read)

        return list(await asyncio.gather(*map(ask, requests)))


async def _ask(
    client: httpx.AsyncClient, server: JudgeServer, request: str, read: Callable[[str], float | str]
) -> float | str | TrainingError:
    payload = {
        "model": server.model,
        "temperature": 0,
        "messages": [{"role": "user", "content": request}],
    }
    try:
        reply = await fetch_json(
            client,
            server.url,
            payload,
            timeout_seconds=server.timeout_seconds,
            retries=server.retries,
            max_bytes=MAX_REPLY_BYTES,
        )
    except TrainingError as error:
        return error
    return _read(server.url, reply, read)


def _read(url: str, reply: Any, read: Callable[[str], float | str]) -> float | str:
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
        is_cut = choice.get("finish_reason") == "length"
    except (TypeError, KeyError, IndexError, AttributeError):
        return f"{url} did not return a chat completion, got {str(reply)[:200]!r}"
    if not isinstance(text, str):
        return f"{url} did not return a text, got {str(text)[:200]!r}"
    if is_cut:
        return f"the model's reply was cut at its token limit, it ends with {text[-100:]!r}"
    return read(text)
