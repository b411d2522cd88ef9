"""What the client of rewards over HTTP does when servers misbehave."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.unit.rewards.servers import answering
from titanrl.components.rewards import http_json
from titanrl.components.rewards.http_json import ServerTimeout, request_json
from titanrl.errors import TrainingError


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, without making them."""
    seen: list[float] = []
    monkeypatch.setattr(http_json.time, "sleep", seen.append)
    return seen


def test_request_is_retried_with_backoff_on_a_transient_status(pauses: list[float]) -> None:
    statuses = iter([503, 429, 500, 200])
    with answering(lambda path, sent: (next(statuses), {"path": path, "got": sent["x"]})) as url:
        assert request_json(f"{url}/score", {"x": [1, 2]}, timeout_seconds=60) == {
            "path": "/score",
            "got": [1, 2],
        }
    assert pauses == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("status", "reply", "message"),
    [(422, {"detail": "row 3 is bad"}, "replied 422 .*row 3 is bad"), (200, "<html>", "did not return JSON")],
)
def test_permanent_error_is_reported_immediately(
    status: int, reply: Any, message: str, pauses: list[float]
) -> None:
    with (
        answering(lambda *_: (status, reply)) as url,
        pytest.raises(TrainingError, match=f"{url}/score {message}"),
    ):
        request_json(f"{url}/score", {}, timeout_seconds=60)
    assert pauses == []


def test_retries_are_counted(pauses: list[float]) -> None:
    requests: list[str] = []

    def answer(path: str, sent: Any) -> tuple[int, Any]:
        requests.append(path)
        return 503, {}

    with answering(answer) as url, pytest.raises(TrainingError, match=r"replied 503 .*attempts: 3"):
        request_json(url, {}, timeout_seconds=60, retries=2)
    assert len(requests) == 3


def test_unreachable_server_is_reported_within_the_timeout() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(TrainingError, match=rf":{port} cannot be reached: .*refused"):
        request_json(f"http://127.0.0.1:{port}", {}, timeout_seconds=0.4)
    assert time.monotonic() - began < 2


def test_slow_server_times_out() -> None:
    def sleepy(path: str, sent: Any) -> tuple[int, Any]:
        time.sleep(0.5)
        return 200, {}

    with answering(sleepy) as url, pytest.raises(ServerTimeout, match=r"did not reply within 0\.1 s"):
        request_json(url, {}, timeout_seconds=0.1)


def test_incomplete_error_response_times_out(pauses: list[float]) -> None:
    """The body of an error response counts towards the same timeout as a valid response."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def stall() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 422 No\r\nContent-Length: 900\r\n\r\nrow 3")
                ended.wait(10)

        ended = threading.Event()
        thread = threading.Thread(target=stall)
        thread.start()
        try:
            with pytest.raises(ServerTimeout, match=r"did not reply within 0\.3 s"):
                request_json(f"http://127.0.0.1:{server.getsockname()[1]}", {}, timeout_seconds=0.3)
        finally:
            ended.set()
            thread.join()
    assert pauses == []


def test_long_error_response_is_truncated() -> None:
    with answering(lambda *_: (422, "x" * 10_000)) as url, pytest.raises(TrainingError) as caught:
        request_json(url, {}, timeout_seconds=60)
    assert 400 < str(caught.value).count("x") <= 500


def test_module_imports_no_http_client_at_the_top() -> None:
    code = (
        "import sys, titanrl.components.rewards.http_json as m; "
        "assert not {'ssl', 'http.client', 'urllib.request'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
