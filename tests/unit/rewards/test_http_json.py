"""What the client of rewards over HTTP does when servers misbehave."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.unit.rewards.servers import answering, handling, respond
from titanrl.components.rewards import http_json
from titanrl.components.rewards.http_json import (
    MalformedReply,
    ServerTimeout,
    ServerUnavailable,
    request_json,
)
from titanrl.errors import TrainingError


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, without making them."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(http_json, "_pause", pause)
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
    [
        (422, {"detail": "row 3 is bad"}, "replied 422 .*row 3 is bad"),
        (200, "<html>", "did not return JSON"),
        (200, "NaN", "did not return JSON: NaN is not a JSON number"),
        (200, "[" * 100_000, "did not return JSON: .*recursion"),
        (200, "\xff", "did not return JSON"),
    ],
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


@pytest.mark.slow
def test_deadline_covers_a_reply_that_trickles() -> None:
    """Each read takes a tenth of the timeout; a timeout per read would let it go on for 10 s."""

    def trickle(handler: Any, _: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    with handling(trickle) as url:
        began = time.monotonic()
        with pytest.raises(ServerTimeout, match=r"did not reply within 0\.5 s"):
            request_json(url, {}, timeout_seconds=0.5)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_endless_reply_is_cut(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr(http_json, "MAX_REPLY_BYTES", 10_000)
    monkeypatch.setitem(request_json.__globals__["fetch_json"].__kwdefaults__, "max_bytes", 10_000)
    sent: list[int] = []

    def flood(handler: Any, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", encoding)
        handler.end_headers()
        chunk = b" " * 65536
        for _ in range(1000):
            handler.wfile.write(chunk if encoding == "identity" else gzip.compress(chunk * 20))
            sent.append(len(chunk))

    with handling(flood) as url, pytest.raises(MalformedReply, match="replied with more than 10000 bytes"):
        request_json(url, {}, timeout_seconds=20)
    assert len(sent) < 1000


def test_redirect_to_another_origin_gets_neither_credential_nor_content() -> None:
    stolen: list[Any] = []
    with answering(lambda path, sent: (200, stolen.append(sent))) as other:

        def away(handler: Any, _: bytes) -> None:
            respond(handler, 307, b"", {"Location": f"{other}/steal"})

        with (
            handling(away) as url,
            pytest.raises(
                ServerUnavailable, match=f"redirects to another server, {other}/steal, which is not"
            ),
        ):
            request_json(url, {"a": 1}, timeout_seconds=5, headers={"Authorization": "Bearer secret"})
    assert stolen == []


def test_redirect_on_the_same_origin_keeps_method_content_and_credential() -> None:
    def handle(handler: Any, body: bytes) -> None:
        if handler.path == "/v1":
            respond(handler, 308, b"", {"Location": "/v1/"})
        elif handler.path == "/loop":
            respond(handler, 307, b"", {"Location": "/loop"})
        elif handler.path == "/get":
            respond(handler, 302, b"", {"Location": "/v1/"})
        else:
            respond(handler, 200, b'["%s", %s]' % (handler.headers["Authorization"].encode(), body))

    with handling(handle) as url:
        headers = {"Authorization": "Bearer key"}
        assert request_json(f"{url}/v1", {"a": 1}, timeout_seconds=5, headers=headers) == [
            "Bearer key",
            {"a": 1},
        ]
        with pytest.raises(ServerUnavailable, match="redirects more than 5 times"):
            request_json(f"{url}/loop", {}, timeout_seconds=5)
        with pytest.raises(ServerUnavailable, match="without the content of the request"):
            request_json(f"{url}/get", {}, timeout_seconds=5)


def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def proxy(path: str, sent: Any) -> tuple[int, Any]:
        paths.append(path)
        return 200, {"ok": 1}

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with answering(proxy) as url:
        monkeypatch.setenv("http_proxy", url)
        assert request_json("http://judge.invalid/v1", {}, timeout_seconds=5) == {"ok": 1}
        monkeypatch.setenv("no_proxy", "judge.invalid")
        with pytest.raises(ServerUnavailable, match="cannot be reached"):
            request_json("http://judge.invalid/v1", {}, timeout_seconds=5, retries=0)
    assert paths == ["http://judge.invalid/v1"]


def test_retry_after_is_the_least_pause(pauses: list[float]) -> None:
    replies = iter([(503, {"Retry-After": "3"}), (429, {"Retry-After": "soon"}), (200, {})])

    def handle(handler: Any, _: bytes) -> None:
        status, headers = next(replies)
        respond(handler, status, b"1", headers)

    with handling(handle) as url:
        assert request_json(url, {}, timeout_seconds=60) == 1
    assert pauses == [3.0, 0.5]


def test_errors_do_not_show_the_password_of_the_address() -> None:
    with answering(lambda *_: (401, {})) as url, pytest.raises(ServerUnavailable) as caught:
        request_json(url.replace("//", "//me:secret@"), {}, timeout_seconds=5)
    assert "secret" not in str(caught.value)
    with pytest.raises(ServerUnavailable, match="cannot be re"):
        request_json("http://[nonsense", {}, timeout_seconds=5, retries=0)


def test_request_works_inside_a_running_loop() -> None:
    """As in a notebook."""
    import asyncio

    async def cell() -> Any:
        with answering(lambda *_: (200, 5)) as url:
            return request_json(url, {}, timeout_seconds=5)

    assert asyncio.run(cell()) == 5


@pytest.mark.slow
def test_module_imports_no_http_client_at_the_top() -> None:
    code = (
        "import sys, titanrl.components.rewards.http_json as m; "
        "assert not {'asyncio', 'ssl', 'httpx', 'anyio', 'tenacity'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
