"""Load a model server with many clients, some of them hostile, and count wrong, lost and failed replies.

    python -m tools.load_server EXPERIMENT --clients 200 --seconds 60 --hostile 0.05

starts `titanrl serve EXPERIMENT`. Each ordinary request has a seed, and its response must be the one that the
same request gets alone. Hostile requests are malformed, huge, half sent or abandoned; they must get a status
from 400 to 499, or none where they do not wait for one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

__all__ = ["HOSTILE_BODIES", "ORDINARY", "Load", "run_load"]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SHARE = 0.25
"""Share of the samples at the beginning and the end whose means are compared."""


def _chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": text}], **more}


def _text(text: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"prompt": text, **more}


ORDINARY: list[tuple[str, dict[str, Any]]] = [
    _text("say 1", seed=1),
    _text("say 2", seed=2, n=3),
    _text("say 3", seed=3, max_tokens=20),
    _text("say 4", temperature=0),
    _text(["say 5", "ask"], seed=5, temperature=0.5),
    _text([5, 9, 13], seed=6, logprobs=2),
    _text("say 7", seed=7, stop=["e", "t"], max_tokens=16),
    _text("say 8", seed=8, stream=True, max_tokens=12),
    _chat("say 9", seed=9),
    _chat("say 10", seed=10, stream=True, n=2),
    _chat("say 11", seed=11, presence_penalty=0, logprobs=True),
    _chat("say 12", seed=12, stream=True, stop="a", stream_options={"include_usage": True}),
]
"""Requests whose responses are known."""


def _json(path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    return path, json.dumps(body).encode()


HOSTILE_BODIES: dict[str, tuple[str, bytes]] = {
    "tiny temperature": _json(*_text("a", temperature=1e-320)),
    "NaN": (TEXT, b'{"prompt": "a", "temperature": NaN}'),
    "infinity": (TEXT, b'{"prompt": "a", "temperature": 1e999}'),
    "lone surrogate": (TEXT, b'{"prompt": "\\ud800"}'),
    "surrogate in a chat": (CHAT, b'{"messages": [{"role": "user", "content": "\\udfff"}]}'),
    "max_tokens": _json(*_text("a", max_tokens=10**19)),
    "type": _json(*_text("a", n="3")),
    "role": _json(CHAT, {"messages": [{"role": "boss", "content": "a"}]}),
    "no messages": _json(CHAT, {"messages": []}),
    "null content": _json(CHAT, {"messages": [{"role": "user", "content": None}]}),
    "unknown key": _json(*_text("a", heat=1)),
    "penalty": _json(*_text("a", presence_penalty=0.5)),
    "empty prompt": _json(*_text([])),
    "token id": _json(*_text([10**12])),
    "negative id": _json(*_text([-1])),
    "million responses": _json(*_text(["a"] * 1000, n=1000)),
    "million prompts": _json(*_text(["a"] * 1_000_000)),
    "long prompt": _json(*_text("a " * 2_500_000)),
    "long chat": _json(*_chat("x" * 5_000_000)),
    "many ids": _json(*_text([5] * 1_000_000)),
    "large body": (TEXT, b" " * (12 * 2**20)),
    "nesting": (TEXT, b'{"prompt": ' + b"[" * 100_000),
    "not JSON": (TEXT, b"\x00\xff"),
    "list": (TEXT, b"[]"),
    "many stops": _json(*_text("a", stop=["b"] * 10_000)),
    "long key": _json(TEXT, {"prompt": "a", "k" * 100_000: 1}),
    "model": _json(*_text("a", model="\x00other")),
    "path": ("/v1/nothing", b"{}"),
    "method": ("/v1/models", b"{}"),
}
"""Name -> path and body of requests that must be refused."""


@dataclass
class Load:
    """What the clients saw, and what the server used."""

    ordinary: Counter[str] = field(default_factory=Counter)
    """Outcome of ordinary requests -> number: right, wrong, lost, or a status."""
    hostile: Counter[str] = field(default_factory=Counter)
    """Outcome of hostile requests -> number: refused, cut, accepted, lost, or a status from 500 on."""
    problems: list[str] = field(default_factory=list)
    """The first replies that should not be."""
    seconds: list[float] = field(default_factory=list)
    """Time of each ordinary request."""
    usage: list[tuple[float, float, int, int]] = field(default_factory=list)
    """Samples of the server: time, MiB, descriptors, threads."""

    @property
    def is_clean(self) -> bool:
        """Whether all replies were as they should be."""
        return set(self.ordinary) <= {"right"} and set(self.hostile) <= {"refused", "cut"}

    def note(self, counts: Counter[str], outcome: str, is_right: bool, text: str) -> None:
        counts[outcome] += 1
        if not is_right and len(self.problems) < 10:
            self.problems.append(f"{outcome}: {text[:300]}")

    def growth(self, column: int) -> tuple[float, float]:
        """Return the means of a column of ``usage`` over the first and the last quarter."""
        values = [sample[column] for sample in self.usage]
        count = max(int(len(values) * SHARE), 1)
        return sum(values[:count]) / count, sum(values[-count:]) / count

    def report(self) -> str:
        ordered = sorted(self.seconds) or [0.0]
        median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
        lines = [
            f"ordinary requests: {dict(self.ordinary)}",
            f"hostile requests: {dict(self.hostile)}",
            f"seconds per ordinary request: median {median:.2f}, 99% {high:.2f}, largest {ordered[-1]:.2f}",
        ]
        for column, name in ((1, "memory, MiB"), (2, "descriptors"), (3, "threads")):
            if self.usage:
                before, after = self.growth(column)
                lines.append(f"{name}: {before:.1f} in the first quarter, {after:.1f} in the last")
        return "\n".join([*lines, *self.problems])


async def run_load(
    url: str,
    *,
    clients: int,
    seconds: float,
    hostile: float,
    process: psutil.Process | None = None,
    bodies: Sequence[str] = tuple(HOSTILE_BODIES),
) -> Load:
    """Send requests from many clients at once and return what happened.

    Args:
        url: address of the server.
        clients: number of concurrent clients.
        seconds: duration; requests that run then are waited for.
        hostile: share of hostile requests.
        process: the server's, whose memory is measured.
        bodies: names of the hostile bodies to send.
    """
    load = Load()
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits, trust_env=False) as client:
        wanted = [await _request(client, *each) for each in ORDINARY]
        assert all(status == 200 for status, _ in wanted), wanted
        numbers = random.Random(0)
        end = time.monotonic() + seconds

        async def work() -> None:
            while time.monotonic() < end:
                if numbers.random() < hostile:
                    await _attack(load, client, url, numbers, bodies)
                    continue
                index = numbers.randrange(len(ORDINARY))
                began = time.monotonic()
                try:
                    status, reply = await _request(client, *ORDINARY[index])
                except httpx.HTTPError as error:
                    load.note(load.ordinary, "lost", False, f"{ORDINARY[index]}: {error!r}")
                    continue
                load.seconds.append(time.monotonic() - began)
                is_right = (status, reply) == wanted[index]
                outcome = ("right" if is_right else "wrong") if status == 200 else str(status)
                load.note(load.ordinary, outcome, is_right, f"{ORDINARY[index]}: {reply} for {wanted[index]}")

        watch = asyncio.create_task(_watch(load, process))
        await asyncio.gather(*(work() for _ in range(clients)))
        watch.cancel()
    return load


async def _watch(load: Load, process: psutil.Process | None) -> None:
    while process is not None:
        memory = process.memory_info().rss / 2**20
        load.usage.append((time.monotonic(), memory, process.num_fds(), process.num_threads()))
        await asyncio.sleep(0.5)


async def _request(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status, and what of the reply is the same every time."""
    reply = await client.post(path, json=body)
    if reply.status_code != 200:
        return reply.status_code, reply.text
    if not body.get("stream"):
        return 200, [_essence(choice) for choice in reply.json()["choices"]]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    lines = reply.text.split("\n\n")
    if lines[-2:] != ["data: [DONE]", ""]:
        return 200, f"a stream without its end: {lines[-2:]}"
    for line in lines[:-2]:
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            return 500, chunk
        for choice in chunk["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    return 200, [(texts[index], reasons[index]) for index in sorted(texts)]


def _essence(choice: dict[str, Any]) -> tuple[str, str]:
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, choice["finish_reason"]


async def _attack(
    load: Load, client: httpx.AsyncClient, url: str, numbers: random.Random, bodies: Sequence[str]
) -> None:
    if numbers.random() < 0.3:
        name = numbers.choice(list(RAW))
        try:
            outcome = await asyncio.wait_for(RAW[name](url), 60)
        except OSError:
            outcome = "cut"
        load.note(load.hostile, outcome, outcome in ("refused", "cut"), name)
        return
    name = numbers.choice(bodies)
    path, body = HOSTILE_BODIES[name]
    try:
        reply = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    except httpx.HTTPError as error:
        load.note(load.hostile, "lost", False, f"{name}: {error!r}")
        return
    is_refused = 400 <= reply.status_code < 500 and "message" in reply.json()["error"]
    outcome = "refused" if is_refused else "accepted" if reply.status_code == 200 else str(reply.status_code)
    load.note(load.hostile, outcome, is_refused, f"{name}: {reply.text}")


async def _connection(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


def _post(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = (
        f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    )
    return head.encode() + body


LONG = json.dumps({"prompt": "say 1", "n": 8, "max_tokens": 40, "temperature": 1}).encode()


async def _abandoned(url: str) -> str:
    """Send a request for long responses and leave."""
    _, writer = await _connection(url, _post(LONG))
    await asyncio.sleep(0.05)
    writer.close()
    return "cut"


async def _abandoned_stream(url: str) -> str:
    """Leave a stream after its first bytes."""
    body = json.dumps(json.loads(LONG) | {"stream": True}).encode()
    reader, writer = await _connection(url, _post(body))
    await reader.read(20)
    writer.close()
    return "cut"


async def _half_headers(url: str) -> str:
    _, writer = await _connection(url, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-A: ")
    await asyncio.sleep(1)
    writer.close()
    return "cut"


async def _half_body(url: str) -> str:
    _, writer = await _connection(url, _post(b'{"prompt": ', 1000))
    await asyncio.sleep(1)
    writer.close()
    return "cut"


async def _refused(url: str, data: bytes) -> str:
    reader, writer = await _connection(url, data)
    head = await reader.read(200)
    writer.close()
    match = re.match(rb"HTTP/1.1 (\d+)", head)
    return "cut" if not head else "refused" if match and match[1].startswith(b"4") else repr(head)


async def _garbage(url: str) -> str:
    return await _refused(url, bytes(range(256)) * 4 + b"\r\n\r\n")


async def _long_header(url: str) -> str:
    return await _refused(url, b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n")


async def _two_lengths(url: str) -> str:
    return await _refused(
        url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
    )


RAW: dict[str, Callable[[str], Awaitable[str]]] = {
    "abandoned": _abandoned,
    "abandoned stream": _abandoned_stream,
    "half headers": _half_headers,
    "half body": _half_body,
    "garbage": _garbage,
    "long header": _long_header,
    "two lengths": _two_lengths,
}
"""Name -> a connection that does not keep to HTTP, or leaves."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hostile", type=float, default=0.05)
    options = parser.parse_args()
    command = [sys.executable, "-m", "titanrl", "serve", options.experiment, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next((line.split()[-1] for line in process.stdout if line.startswith("serving")), None)
        if url is None:
            return 1
        load = asyncio.run(
            run_load(
                url,
                clients=options.clients,
                seconds=options.seconds,
                hostile=options.hostile,
                process=psutil.Process(process.pid),
            )
        )
        process.send_signal(signal.SIGTERM)
        print(load.report())
        for moment, *values in load.usage[:: max(len(load.usage) // 12, 1)]:
            memory, descriptors, threads = values
            seconds = moment - load.usage[0][0]
            print(f"{seconds:6.1f} s: {memory:.1f} MiB, {descriptors} descriptors, {threads} threads")
        print(f"exit code after SIGTERM: {process.wait(120)}")
    return 0 if load.is_clean and process.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
