"""Calls of functions from an event loop, in daemon threads that may outlive their time limit."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["TimedOut", "call_with_timeout"]


class TimedOut(TimeoutError):
    """Raised when a call takes longer than its time limit."""


async def call_with_timeout(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Return ``function(*arguments)``, awaited if it is awaitable.

    A function that is not async runs in a daemon thread of its own: one that hangs is left behind, and delays
    neither the event loop nor the exit of the process, which waits for the threads of ``asyncio.to_thread``.

    Args:
        function: the function.
        arguments: its arguments.
        seconds: time limit, for the awaiting too.

    Raises:
        TimedOut: the time limit is over; an awaitable is cancelled, a thread left behind.
        RuntimeError: the function raised SystemExit or KeyboardInterrupt, which would end the event loop.
        Exception: whatever the function raises.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        result = function(*arguments)
    else:
        result = await _before(end, _in_thread(function, arguments), seconds)
    if inspect.isawaitable(result):
        result = await _before(end, asyncio.ensure_future(_guarded(result)), seconds)
    return result


async def _before(end: float, future: asyncio.Future[Any], seconds: float) -> Any:
    """Return the result of a future, which is cancelled at ``end`` and need not react to it."""
    try:
        # asyncio.wait_for would wait for a task that ignores being cancelled.
        done, _ = await asyncio.wait({future}, timeout=max(0.0, end - asyncio.get_running_loop().time()))
    except asyncio.CancelledError:
        future.cancel()
        raise
    if not done:
        future.cancel()
        raise TimedOut(f"took longer than {seconds:g} s")
    if future.cancelled():
        raise RuntimeError("the call was cancelled")
    return future.result()


def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:  # Whatever a tool raises is an outcome of its call.
            error = _as_exception(raised)
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # The loop was left meanwhile, so the result has no reader.

    threading.Thread(target=run, daemon=True, name="titanrl-tool").start()
    return future


async def _guarded(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        raise _as_exception(error) from None


def _as_exception(error: BaseException) -> Exception:
    """Return an error that a future may hold and that ends no event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
