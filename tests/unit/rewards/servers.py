"""Small HTTP servers for rewards that ask one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["answering", "handling", "respond"]


@contextmanager
def answering(answer: Callable[[str, Any], tuple[int, Any]]) -> Iterator[str]:
    """Yields the address of a server whose status and JSON are a function of a request's path and JSON."""

    def handle(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        sent = json.loads(body)
        status, reply = answer(handler.path, sent | {"headers": dict(handler.headers)})
        respond(handler, status, reply.encode() if isinstance(reply, str) else json.dumps(reply).encode())

    with handling(handle) as url:
        yield url


def respond(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Sends a reply with these headers."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


@contextmanager
def handling(handle: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    """Yields the address of a server that handles each POST request, given its body, in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            # The client may be gone.
            with suppress(BrokenPipeError, ConnectionResetError):
                handle(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
