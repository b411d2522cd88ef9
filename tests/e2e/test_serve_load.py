"""The model server under load: hostile requests harm no other, and clients that leave free their places."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.test_serve import file, serving, wait_until
from titanrl.components.samplers.torch.stream import TorchStream
from titanrl.serve.engine import EngineLoop
from tools.load_server import HOSTILE_BODIES, run_load

__all__ = ["file", "serving"]


@pytest.mark.slow
def test_hostile_requests_harm_no_other(file: Path, serving: Any) -> None:
    """A small part of ``python -m tools.load_server``; a body of each kind is sent at least once."""
    with serving(file) as url:
        load = asyncio.run(run_load(url, clients=30, seconds=4, hostile=0.1))
        every = asyncio.run(run_load(url, clients=4, seconds=2, hostile=0.9, bodies=tuple(HOSTILE_BODIES)))
    assert load.is_clean, load.report()
    assert every.is_clean, every.report()
    assert load.ordinary["right"] > 20
    assert every.hostile["refused"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_free_their_places(
    file: Path, serving: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    engines: list[EngineLoop] = []
    steps: list[int] = []
    real_run, real_step = EngineLoop.run, TorchStream.step

    def run(self: EngineLoop) -> None:
        engines.append(self)
        real_run(self)

    def step(self: TorchStream) -> Any:
        time.sleep(0.05)
        events = real_step(self)
        steps.append(len(events))
        return events

    monkeypatch.setattr(EngineLoop, "run", run)
    monkeypatch.setattr(TorchStream, "step", step)
    body = json.dumps({"prompt": "say 1", "n": 100, "max_tokens": 50, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    with serving(file) as url:
        where = (urlsplit(url).hostname, urlsplit(url).port)
        for _ in range(3):
            connection = socket.create_connection(where, timeout=30)
            connection.sendall(request)
            wait_until(lambda: bool(engines) and engines[0].num_open >= 50)
            if stream:
                assert connection.recv(100)
            connection.close()
            wait_until(lambda: engines[0].num_open == 0)
    # 300 responses of up to 50 tokens, 128 at a time, would have taken 150 steps.
    assert len(steps) < 60
