"""Signs of life of the ranks in the job's store: a dead or stopped rank ends the others within a time limit.

Each rank writes a count and its stage once per interval. Rank 0 reads all of them, the other ranks read rank
0's. A rank whose count stands still for too long is lost: the rank that notices says so in the store, and
every rank ends. Requests to stop travel the same way, so that a signal to one rank reaches all.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from titanrl.runtime import status, stop
from titanrl.runtime.supervise import LOST

__all__ = ["STOP", "VERDICT", "beating"]

PREFIX = "titanrl"
STOP, VERDICT = f"{PREFIX}/stop", f"{PREFIX}/verdict"
"""Keys of the reason to stop, and of the report that a rank is lost."""
MAX_INTERVAL_SECONDS = 1.0
START_SECONDS = 600.0
"""Time, in addition to the limit, until the first sign of life: hosts differ in how fast they import."""


class _Heartbeat:
    """Two threads: one talks to the store, which may hang with its host; one judges what it has seen."""

    def __init__(self, rank: int, world_size: int, address: tuple[str, int], stall_seconds: float) -> None:
        self._rank, self._address, self._stall_seconds = rank, address, stall_seconds
        self._interval = min(MAX_INTERVAL_SECONDS, stall_seconds / 8)
        self._watched = [each for each in range(world_size) if each != rank] if rank == 0 else [0]
        self._beats: dict[int, dict[str, Any]] = {}
        self._exchanges = 0
        self._is_over = threading.Event()
        self._told = False
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"titanrl-{name}")
            for target, name in ((self._exchange_all, "heartbeat"), (self._judge, "judge"))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Say that this rank ends in order, and end the threads."""
        self._is_over.set()
        self._threads[0].join(timeout=5 * self._interval)

    def _exchange_all(self) -> None:
        store: Any = None
        while True:
            try:
                if store is None:
                    store = self._connect()
                is_last = self._is_over.is_set()
                self._exchange(store, is_last=is_last)
                self._exchanges += 1
                if is_last:
                    return
            # The store is gone with its host: the judge notices that the exchanges stand still.
            except (RuntimeError, OSError):
                if self._is_over.is_set():
                    return
                store = None
            self._is_over.wait(self._interval)

    def _connect(self) -> Any:
        from datetime import timedelta

        import torch

        host, port = self._address
        # A connection of its own: the main thread may wait in the other one.
        limit = timedelta(seconds=self._stall_seconds)
        # Not `from torch.distributed import`, which would load a lazy torch twice.
        return torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=limit, wait_for_workers=False
        )

    def _exchange(self, store: Any, *, is_last: bool) -> None:
        beat = {
            "count": self._exchanges,
            "is_last": is_last,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            **status.current(),
        }
        store.set(f"{PREFIX}/beat/{self._rank}", json.dumps(beat))
        for rank in self._watched:
            key = f"{PREFIX}/beat/{rank}"
            if store.check([key]):
                self._beats[rank] = json.loads(store.get(key))
        reason = stop.requested()
        if reason and not self._told:
            self._told = True
            if not store.check([STOP]):
                store.set(STOP, f"{reason} on rank {self._rank}")
        elif not reason and store.check([STOP]):
            self._told = True
            stop.request(store.get(STOP).decode())
        if not is_last and store.check([VERDICT]):
            status.update(end="reported")
            os._exit(LOST)

    def _judge(self) -> None:
        """Count ticks rather than seconds: a process that was itself suspended has seen nothing."""
        silent = dict.fromkeys(self._watched, 0)
        counts: dict[int, int] = {}
        stuck, exchanges = 0, -1
        ticks = self._stall_seconds / self._interval
        first_ticks = ticks + START_SECONDS / self._interval
        while not self._is_over.wait(self._interval):
            stuck = stuck + 1 if exchanges == self._exchanges else 0
            exchanges = self._exchanges
            if stuck > (ticks if exchanges else first_ticks):
                host, port = self._address
                self._end(
                    f"the store of this job at {host}:{port} has not answered rank {self._rank} for "
                    f"{self._stall_seconds:g} s; its host, which runs the launcher or rank 0, is lost."
                )
            if stuck:
                continue  # What others wrote cannot be read.
            for rank in self._watched:
                beat = self._beats.get(rank, {"count": -1})
                silent[rank] = silent[rank] + 1 if counts.get(rank) == beat["count"] else 0
                counts[rank] = beat["count"]
                if not beat.get("is_last") and silent[rank] > (ticks if beat["count"] >= 0 else first_ticks):
                    self._end(self._lost(rank, beat))

    def _lost(self, rank: int, beat: dict[str, Any]) -> str:
        if beat["count"] < 0:
            return f"rank {rank} has not started within {START_SECONDS + self._stall_seconds:g} s."
        return (
            f"rank {rank} on {beat['host']} (process {beat['pid']}) has given no sign of life for [run] "
            f"stall_seconds = {self._stall_seconds:g}, in {status.describe(beat)}; this rank, {self._rank}, "
            f"was in {status.describe()}. All ranks end."
        )

    def _end(self, text: str) -> None:
        sender = threading.Thread(target=self._tell, args=(text,), daemon=True)
        sender.start()
        sender.join(timeout=2 * self._interval)
        status.update(end="reported")
        os._exit(LOST)

    def _tell(self, text: str) -> None:
        """Write the report to the store; print it unless another rank has."""
        try:
            is_first = self._connect().add(f"{VERDICT}/count", 1) == 1
            if is_first:
                self._connect().set(VERDICT, text)
        except (RuntimeError, OSError):
            is_first = True
        if is_first:
            stop.write_line(text)


@contextmanager
def beating(rank: int, world_size: int, address: tuple[str, int], stall_seconds: float) -> Iterator[None]:
    """Give signs of life, and end this process if a rank of the job gives none, within the block.

    Args:
        rank: number of this rank.
        world_size: number of ranks.
        address: host and port of torch's store.
        stall_seconds: time without a sign of life after which a rank is lost.
    """
    heartbeat = _Heartbeat(rank, world_size, address, stall_seconds)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
