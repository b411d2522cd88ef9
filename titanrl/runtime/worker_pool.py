"""Calls with a timeout, each in a worker process that is killed, with its descendants, when it times out.

Threads cannot be stopped and signals reach the main thread only, so graders that may hang (symbolic algebra,
untrusted code) run here. Workers are new interpreters: nothing is forked, no lock or GPU context of the
trainer is inherited, and functions whose module does not import torch start fast.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["WorkerPool", "CallResult", "map_with_timeout", "max_map_seconds"]

START_SECONDS = 120.0
"""Time for a worker to start and import; long, because no untrusted code runs yet."""
MAX_WORKERS = 64
MAX_TIMEOUTS = 3
"""Consecutive timeouts after which a map with ``give_up`` begins no further call."""
GIVEN_UP = f"given up in this batch, after {MAX_TIMEOUTS} timeouts in a row"
MARK = "TITANRL_WORKER"
"""Environment variable that a worker's descendants inherit: they are found by it when the worker is dead."""
KILL_ROUNDS = 20
"""Passes over a worker's descendants, which may start new processes while they are killed."""
MAX_FAILED_STARTS = 3
"""Failed starts in a row after which another attempt is useless."""


class CallResult(NamedTuple):
    """The result of one call."""

    value: Any
    """The function's result; None after a failure."""
    failure: str | None
    """None after a success; else "timeout", "died", or the exception's type and message."""

    @property
    def score(self) -> Any:
        """The value, or the failure as text."""
        return self.value if self.failure is None else self.failure


class WorkerPool:
    """Worker processes that call one function.

    Args:
        function: importable by name; its arguments and its result must pickle.
        imports: modules that a worker imports before its first call, so that no timeout includes them.
        num_workers: number of processes, started when first needed; None: one per core, at most MAX_WORKERS.
    """

    def __init__(
        self, function: Callable[..., Any], *, imports: Sequence[str] = (), num_workers: int | None = None
    ) -> None:
        self._setup = pickle.dumps((function, tuple(imports)))
        self._num_workers = num_workers or default_workers()
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        atexit.register(self.close)

    def map(
        self, items: Iterable[tuple[Any, ...]], timeout_seconds: float, *, give_up: bool = False
    ) -> list[CallResult]:
        """Call the function once per item and return the results in order; callable from any thread.

        The worker of a call that times out is killed and replaced. Other items are not affected, and time
        spent waiting for a worker does not count. The user's KeyboardInterrupt propagates.

        Args:
            items: the arguments of each call.
            timeout_seconds: limit for each call.
            give_up: whether the calls that have not begun fail after MAX_TIMEOUTS timeouts in a row.

        Raises:
            RuntimeError: workers cannot be started.
        """
        work = list(items)
        results: list[CallResult | None] = [None] * len(work)
        with self._lock:
            self._forget_after_fork()
            self._failed_starts = 0
            try:
                self._run(work, results, timeout_seconds, give_up)
            except BaseException:
                self._kill_all()
                raise
        return [result if result is not None else CallResult(None, "died") for result in results]

    def close(self) -> None:
        """End all workers; the next ``map`` starts new ones."""
        with self._lock:
            self._forget_after_fork()
            self._kill_all()

    def _run(
        self,
        work: list[tuple[Any, ...]],
        results: list[CallResult | None],
        timeout_seconds: float,
        give_up: bool,
    ) -> None:
        pending = list(range(len(work)))[::-1]
        num_timeouts = 0
        while any(result is None for result in results):
            wanted = min(self._num_workers, results.count(None))
            self._workers += [_Worker(self._setup) for _ in range(wanted - len(self._workers))]
            for worker in list(self._workers):
                if worker.is_ready and worker.item is None and pending:
                    index = pending.pop()
                    if not worker.begin(index, work[index], timeout_seconds):
                        # It died while idle: the call has not begun, so another worker takes the item.
                        pending.append(index)
                        self._replace(worker, results, "died")
            now = time.monotonic()
            limit = min((worker.limit for worker in self._workers), default=now)
            ends: list[Connection | int] = [worker.connection for worker in self._workers]
            ends += [end for worker in self._workers for end in worker.pidfd]
            readable = wait(ends, timeout=max(limit - now, 0.0))
            for worker in list(self._workers):
                if worker.connection in readable:
                    num_timeouts = num_timeouts if worker.item is None else 0
                    self._receive(worker, results)
                elif any(end in readable for end in worker.pidfd):
                    self._replace(worker, results, "died")
                elif worker.limit <= time.monotonic():
                    num_timeouts += 1
                    self._replace(worker, results, "timeout")
            if give_up and num_timeouts >= MAX_TIMEOUTS:
                for index in pending:
                    results[index] = CallResult(None, GIVEN_UP)
                pending.clear()

    def _receive(self, worker: _Worker, results: list[CallResult | None]) -> None:
        try:
            # The worker runs functions of the user, not untrusted programs: those are in the sandbox.
            reply = pickle.loads(worker.connection.recv_bytes())  # nosec B301
        except (EOFError, OSError, pickle.UnpicklingError):
            self._replace(worker, results, "died")
            return
        if not worker.is_ready:
            if reply is not None:
                raise RuntimeError(f"a worker process cannot import the function: {reply}")
            worker.ready()
            self._failed_starts = 0
        elif worker.item is not None:
            results[worker.item] = CallResult(*reply)
            worker.ready()

    def _replace(self, worker: _Worker, results: list[CallResult | None], failure: str) -> None:
        self._workers.remove(worker)
        worker.kill()
        self._failed_starts += not worker.is_ready
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise RuntimeError(
                f"worker processes do not start ({failure}); try `python -m titanrl.runtime.worker`."
            )
        if worker.item is not None:
            results[worker.item] = CallResult(None, failure)
        # Start the replacement at once: it imports while other workers compute.
        self._workers.append(_Worker(self._setup))

    def _kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._workers, self._pid = [], os.getpid()


class _Worker:
    """One worker process and its current call."""

    def __init__(self, setup: bytes) -> None:
        ours, theirs = socket.socketpair()
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
        self._mark = uuid.uuid4().hex
        environment |= {
            MARK: self._mark,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "titanrl.runtime.worker", str(fd), str(os.getpid())],
                pass_fds=(fd,),
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.connection = Connection(ours.detach())
        # A child of a dead worker may hold the connection open, so its end is noticed by the process too.
        self.pidfd = [os.pidfd_open(self.process.pid)] if hasattr(os, "pidfd_open") else []
        self.is_ready = False
        self.item: int | None = None
        self.limit = time.monotonic() + START_SECONDS
        with contextlib.suppress(OSError):  # The pool notices a dead worker by its closed connection.
            self.connection.send_bytes(setup)

    def ready(self) -> None:
        self.is_ready, self.item, self.limit = True, None, float("inf")

    def begin(self, item: int, arguments: tuple[Any, ...], seconds: float) -> bool:
        """Send an item; return False if the process has died."""
        try:
            self.connection.send_bytes(pickle.dumps((arguments, seconds)))
        except OSError:
            return False
        self.item, self.limit = item, time.monotonic() + seconds
        return True

    def kill(self) -> None:
        """Kill the process and all its descendants, including those that moved to sessions of their own.

        The descendants of a process that has died already are recognized by their environment.
        """
        self.connection.close()
        while self.pidfd:
            os.close(self.pidfd.pop())
        pid = self.process.pid
        # A stopped process starts nothing new but still adopts orphans, so the descendants become fewer.
        _send(pid, signal.SIGSTOP)
        for _ in range(KILL_ROUNDS):
            children = {*descendants(pid), *_marked(f"{MARK}={self._mark}".encode())} - {pid}
            if not children:
                break
            for child in children:
                _send(child, signal.SIGKILL)
        _send(pid, signal.SIGKILL)
        self.process.wait()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _marked(mark: bytes) -> list[int]:
    """Return the living processes that inherited ``mark``, an entry of their environment, from /proc."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                pids.append(int(entry.parent.name))
    return pids


def descendants(pid: int) -> list[int]:
    """Return the living descendants of ``pid``, without zombies, from /proc; empty if there is no /proc."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name, in parentheses, may contain spaces.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
            if state == "Z":
                zombies.add(int(entry.parent.name))
    pids, queue = [], [pid]
    while queue:
        direct = children.get(queue.pop(), [])
        pids += direct
        queue += direct
    return [child for child in pids if child not in zombies]


def max_map_seconds(num_items: int, timeout_seconds: float) -> float:
    """Return the longest time of ``map_with_timeout``, seconds; the start of its workers comes on top."""
    return math.ceil(num_items / default_workers()) * timeout_seconds


def default_workers() -> int:
    """Return the number of processes of a pool: one per core that this process may use, up to MAX_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_WORKERS, cores)


_pools: dict[tuple[Any, ...], WorkerPool] = {}
_pools_lock = threading.Lock()


def map_with_timeout(
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    *,
    timeout_seconds: float,
    imports: Sequence[str] = (),
    give_up: bool = False,
) -> list[CallResult]:
    """Return the result of ``function(*item)`` for each item, from a pool per function that lives on.

    Args:
        function: as for ``WorkerPool``.
        items: the arguments of each call.
        timeout_seconds: limit for each call.
        imports: as for ``WorkerPool``.
        give_up: as for ``WorkerPool.map``.
    """
    key = (function, tuple(imports))
    with _pools_lock:
        pool = _pools.setdefault(key, WorkerPool(function, imports=imports))
    return pool.map(items, timeout_seconds, give_up=give_up)
