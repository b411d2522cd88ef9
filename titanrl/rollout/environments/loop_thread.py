"""An asyncio event loop in a thread of its own, which can be left when a task blocks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch

__all__ = ["LoopThread"]

PING_SECONDS = 0.5
"""Time in which an event loop must answer; otherwise a task blocks it."""

_owner: ContextVar[int | None] = ContextVar("owner", default=None)


class LoopThread:
    """An event loop in a daemon thread, so that nothing that runs in it can delay the exit of the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._owners: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.loop.set_task_factory(self._task)
        threading.Thread(target=self._run, daemon=True, name="titanrl-environments").start()

    def start(self, coroutine: Coroutine[Any, Any, None], owner: int) -> None:
        """Begin a coroutine as a task of ``owner``, and so are all tasks that it begins."""

        async def owned() -> None:
            _owner.set(owner)
            self._owners[asyncio.current_task()] = owner
            await coroutine

        asyncio.run_coroutine_threadsafe(owned(), self.loop)

    def cancel(self, owner: int) -> None:
        """Cancel all tasks of an owner."""

        def cancel() -> None:
            for task in asyncio.all_tasks(self.loop):
                if self._owners.get(task) == owner:
                    task.cancel()

        self.loop.call_soon_threadsafe(cancel)

    def answers(self) -> bool:
        """Return whether the loop runs other tasks, within half a second."""
        answered = threading.Event()
        self.loop.call_soon_threadsafe(answered.set)
        return answered.wait(PING_SECONDS)

    def running_owner(self) -> int | None:
        """Return the owner of the task that runs at this moment; None: no task runs, or nobody's."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._owners.get(task)

    def leave(self) -> None:
        """Stop the loop as soon as it can; its tasks are cancelled, and it need not answer any more."""

        def stop() -> None:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.loop.call_soon_threadsafe(stop)

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        if (owner := _owner.get()) is not None:
            self._owners[task] = owner
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with torch.no_grad():
            self.loop.run_forever()
        self.loop.close()
