"""One event loop for async reward functions, in a thread that lives as long as the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

import torch

__all__ = ["begin", "cancel"]

PING_SECONDS = 0.5
"""Time in which the event loop must answer after a timeout; otherwise a function blocks it, and a new one
takes over."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def begin(awaitable: Awaitable[Any]) -> Future[Any]:
    """Begin to await on the event loop that all async functions share, so that their clients stay open.

    SystemExit and KeyboardInterrupt become a RuntimeError: raised, they would end the loop.
    """
    global _loop
    with _lock:
        if _loop is None or not _loop.is_running():
            _loop = asyncio.new_event_loop()
            ready = threading.Event()
            _loop.call_soon(ready.set)
            threading.Thread(target=_run, args=(_loop,), daemon=True, name="titanrl-async").start()
            ready.wait()
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), _loop)


def cancel(future: Future[Any]) -> None:
    """Cancel what ``begin`` began; an event loop that a function blocks is left, and a new one takes over."""
    global _loop
    future.cancel()
    with _lock:
        if _loop is None:
            return
        answered = threading.Event()
        _loop.call_soon_threadsafe(answered.set)
        if not answered.wait(PING_SECONDS):
            _loop.call_soon_threadsafe(_loop.stop)
            _loop = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with torch.no_grad():
        loop.run_forever()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
