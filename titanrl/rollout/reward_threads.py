"""Threads that call reward functions with a time limit, several calls at a time."""

from __future__ import annotations

import ctypes
import inspect
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from titanrl.rollout import event_loop
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LATE", "FailedCall", "RewardThreads"]

LATE = "took longer than its timeout_seconds"
"""First words of the reason of a call that timed out."""


class FailedCall(NamedTuple):
    """Stands in for the result of a function that raised or timed out."""

    reason: str


class RewardThreads:
    """Threads that call reward functions, so that one that hangs can be abandoned, and Ctrl-C works."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._begins = True

    def call(self, function: Callable[[Any], Any], batch: TensorDict, seconds: float) -> Any:
        """Return ``function(batch)``, or a ``FailedCall`` if it raises or times out."""
        ((_, result),) = self.call_each(function, [batch], seconds, 1)
        return result

    def call_each(
        self, function: Callable[[Any], Any], batches: Sequence[TensorDict], seconds: float, concurrency: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, ``function(batch)``) of each batch when it is done; a ``FailedCall`` as in ``call``.

        Args:
            function: the reward function.
            batches: its arguments.
            seconds: time limit of each call.
            concurrency: number of calls at a time.
        """
        waiting = list(enumerate(batches))[::-1]
        running: dict[int, tuple[_Thread, float]] = {}  # Index -> thread and time limit.
        results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._begins = True
        try:
            yield from self._results(function, waiting, running, results, seconds, concurrency)
        finally:
            for thread, _ in running.values():
                thread.stop()

    def _results(
        self,
        function: Callable[[Any], Any],
        waiting: list[tuple[int, TensorDict]],
        running: dict[int, tuple[_Thread, float]],
        results: queue.SimpleQueue[tuple[int, Any]],
        seconds: float,
        concurrency: int,
    ) -> Iterator[tuple[int, Any]]:
        while running or (waiting and self._begins):
            while waiting and self._begins and len(running) < concurrency:
                index, batch = waiting.pop()
                thread = self._idle.pop() if self._idle else _Thread()
                running[index] = thread, time.monotonic() + seconds
                thread.begin(function, batch, index, results)
            limit = min(limit for _, limit in running.values())
            try:
                index, result = results.get(timeout=max(0.0, limit - time.monotonic()))
            except queue.Empty:
                index = next(index for index, (_, until) in running.items() if until == limit)
                running.pop(index)[0].abandon()
                yield index, FailedCall(f"{LATE}, {seconds:g}")
                continue
            if index in running:  # Otherwise it was abandoned and has ended late.
                self._idle.append(running.pop(index)[0])
                yield index, result

    def begin_no_more(self) -> None:
        """Let ``call_each`` begin no further call; those that run may end."""
        self._begins = False

    def stop(self) -> None:
        """End the threads that are idle."""
        while self._idle:
            self._idle.pop().stop()


class _Thread:
    """A thread that makes one call at a time."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._awaited: Future[Any] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name="titanrl-reward")
        self._thread.start()

    def begin(
        self,
        function: Callable[[Any], Any],
        batch: TensorDict,
        index: int,
        results: queue.SimpleQueue[tuple[int, Any]],
    ) -> None:
        """Call the function; its result, or a ``FailedCall``, goes to ``results`` with the index."""
        self._work.put((function, batch, index, results))

    def abandon(self) -> None:
        """Interrupt the call, and end the thread after it."""
        self._work.put(None)
        if self._awaited is not None:
            event_loop.cancel(self._awaited)
            return
        # Python code raises this at its next instruction; C code and sleeps only when they return.
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    def stop(self) -> None:
        """End the thread after its current call."""
        self._work.put(None)

    def _serve(self) -> None:
        process = os.getpid()
        with torch.no_grad():
            while (task := self._work.get()) is not None:
                function, batch, index, results = task
                try:
                    result = function(batch)
                    if inspect.isawaitable(result):
                        self._awaited = event_loop.begin(result)
                        result = self._awaited.result()
                # SystemExit and KeyboardInterrupt raised by reward code are that reward's failures.
                except BaseException as error:
                    result = FailedCall(error_text(error))
                self._awaited = None
                if os.getpid() != process:
                    os._exit(0)  # A child that the function forked must not go on as a second trainer.
                results.put((index, result))
