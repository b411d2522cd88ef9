"""Calls with a deadline, each in a worker process that is killed, with its children, when it is late.

Threads can't be stopped and signals work in the main thread only, so grading that may hang (symbolic algebra,
foreign code) runs here. Workers are plain new interpreters: nothing is forked, no lock or GPU context of the
trainer is inherited, and functions whose module imports no torch start fast.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["WorkerPool", "CallResult", "map_with_timeout"]

START_SECONDS = 120.0
"""Limit for a worker to start and import; generous, since nothing of the model's runs yet."""
MAX_WORKERS = 4
KILL_ROUNDS = 20
MAX_FAILED_STARTS = 3
"""So many in a row, and something is wrong that another try doesn't mend."""


class CallResult(NamedTuple):
    """What became of one item."""

    value: Any
    """The function's result; None after a failure."""
    failure: str | None
    """Why there is none: `deadline`, `died`, or the exception's type and text."""

    @property
    def score(self) -> Any:
        """The value, or why there is none."""
        return self.value if self.failure is None else self.failure


class WorkerPool:
    """Worker processes for one function.

    Args:
        function: importable by name; receives each item's arguments, its result must pickle.
        imports: modules that a worker imports before its first item, so that no item pays for them.
        num_workers: processes, started when first needed.
    """

    def __init__(
        self, function: Callable[..., Any], *, imports: Sequence[str] = (), num_workers: int | None = None
    ) -> None:
        self._setup = pickle.dumps((function, tuple(imports)))
        self._num_workers = num_workers or max(1, min(MAX_WORKERS, os.cpu_count() or 1))
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        atexit.register(self.close)

    def map(self, items: Iterable[tuple[Any, ...]], timeout_seconds: float) -> list[CallResult]:
        """Returns one outcome for each item's arguments, in order; callable from any thread.

        A late item's worker is killed and replaced; other items are not affected, nor is their time counted
        while they wait for a worker. KeyboardInterrupt of the user passes through.

        Raises:
            RuntimeError: workers can't be started at all.
        """
        work = list(items)
        outcomes: list[CallResult | None] = [None] * len(work)
        with self._lock:
            self._forget_after_fork()
            self._failed_starts = 0
            try:
                self._drive(work, outcomes, timeout_seconds)
            except BaseException:
                self._kill_all()
                raise
        return [outcome if outcome is not None else CallResult(None, "died") for outcome in outcomes]

    def close(self) -> None:
        """Ends all workers; the next map starts new ones."""
        with self._lock:
            self._forget_after_fork()
            self._kill_all()

    def _drive(
        self, work: list[tuple[Any, ...]], outcomes: list[CallResult | None], timeout_seconds: float
    ) -> None:
        pending = list(range(len(work)))[::-1]
        while any(outcome is None for outcome in outcomes):
            wanted = min(self._num_workers, outcomes.count(None))
            self._workers += [_Worker(self._setup) for _ in range(wanted - len(self._workers))]
            for worker in list(self._workers):
                if worker.is_ready and worker.item is None and pending:
                    index = pending.pop()
                    if not worker.begin(index, work[index], timeout_seconds):
                        # Gone while it was idle: nothing of this item ran, another worker takes it.
                        pending.append(index)
                        self._lose(worker, outcomes, "died")
            now = time.monotonic()
            limit = min((worker.limit for worker in self._workers), default=now)
            readable = wait([worker.connection for worker in self._workers], timeout=max(limit - now, 0.0))
            for worker in list(self._workers):
                if worker.connection in readable:
                    self._hear(worker, outcomes)
                elif worker.limit <= time.monotonic():
                    self._lose(worker, outcomes, "deadline")

    def _hear(self, worker: _Worker, outcomes: list[CallResult | None]) -> None:
        try:
            answer = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError):
            self._lose(worker, outcomes, "died")
            return
        if not worker.is_ready:
            if answer is not None:
                raise RuntimeError(f"deadline worker can't import what it needs: {answer}")
            worker.ready()
            self._failed_starts = 0
        elif worker.item is not None:
            outcomes[worker.item] = CallResult(*answer)
            worker.ready()

    def _lose(self, worker: _Worker, outcomes: list[CallResult | None], why: str) -> None:
        self._workers.remove(worker)
        worker.kill()
        self._failed_starts += not worker.is_ready
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise RuntimeError(
                f"deadline workers did not start ({why}); try `python -m titanrl.runtime.worker`."
            )
        if worker.item is not None:
            outcomes[worker.item] = CallResult(None, why)
        # Replaced at once: the new one imports while others work.
        self._workers.append(_Worker(self._setup))

    def _kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._workers, self._pid = [], os.getpid()


class _Worker:
    """One process, and what it is doing now."""

    def __init__(self, setup: bytes) -> None:
        ours, theirs = socket.socketpair()
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
        environment |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "titanrl.runtime.worker", str(fd)],
                pass_fds=(fd,), env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self.connection = Connection(ours.detach())
        self.is_ready = False
        self.item: int | None = None
        self.limit = time.monotonic() + START_SECONDS
        with contextlib.suppress(OSError):  # a worker that died says so by closing its end
            self.connection.send_bytes(setup)

    def ready(self) -> None:
        self.is_ready, self.item, self.limit = True, None, float("inf")

    def begin(self, item: int, arguments: tuple[Any, ...], seconds: float) -> bool:
        """Sends an item; False if the process is gone."""
        try:
            self.connection.send_bytes(pickle.dumps((arguments, seconds)))
        except OSError:
            return False
        self.item, self.limit = item, time.monotonic() + seconds
        return True

    def kill(self) -> None:
        """Ends the process and all its descendants, those too that moved to sessions of their own."""
        self.connection.close()
        pid = self.process.pid
        # Stopped, it starts nothing new, yet still adopts orphans; alone, it can't outrun the killing.
        _send(pid, signal.SIGSTOP)
        for _ in range(KILL_ROUNDS):
            below = descendants(pid)
            if not below:
                break
            for child in below:
                _send(child, signal.SIGKILL)
        _send(pid, signal.SIGKILL)
        self.process.wait()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, zombies left out, from /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name, in brackets, may hold spaces.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
            if state == "Z":
                zombies.add(int(entry.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [child for child in found if child not in zombies]


_pools: dict[tuple[Any, ...], WorkerPool] = {}
_pools_lock = threading.Lock()


def map_with_timeout(
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    *,
    timeout_seconds: float,
    imports: Sequence[str] = (),
) -> list[CallResult]:
    """Returns the outcome of `function(*item)` for each item, through one lasting pool per function."""
    key = (function, tuple(imports))
    with _pools_lock:
        pool = _pools.setdefault(key, WorkerPool(function, imports=imports))
    return pool.map(items, timeout_seconds)
