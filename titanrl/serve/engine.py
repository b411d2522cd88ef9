"""The thread of the model: takes in the responses that clients wait for, and samples them token by token."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from titanrl.protocols import StreamEvent, StreamRequest, TokenStream

__all__ = ["EngineLoop", "Job", "Overloaded"]

POLL_SECONDS = 0.5
"""Interval at which an idle loop lets signal handlers run."""
MAX_OPEN = 8192
"""Responses that wait or are being sampled; a request beyond them is refused."""

Deliver = Callable[[list[StreamEvent]], None]


class Overloaded(Exception):
    """Raised when too many responses wait already."""


@dataclass(eq=False)
class Job:
    """The responses of one client's request."""

    deliver: Deliver
    first: int
    """Key of its first response; keys of a job are consecutive."""
    waiting: deque[StreamRequest]
    """Responses that are not being sampled yet."""
    running: set[int] = field(default_factory=set)
    """Keys of those that are."""
    is_cancelled: bool = False


@dataclass(eq=False)
class _Running:
    job: Job
    request: StreamRequest
    num_events: int = 0
    """Events that the job has got."""
    num_skipped: int = 0
    """Events still to be skipped, because the job got them in an attempt before."""


class EngineLoop:
    """A loop around a token stream, in the thread that calls ``run``.

    Requests take turns: each gets one free place after the other, however many responses it has. If a step
    fails, the responses of that step are sampled again one by one, and only those that fail alone get the
    error.

    Args:
        start: opens the token stream; called in the thread of the loop, again after a failed step.
    """

    def __init__(self, start: Callable[[], TokenStream]) -> None:
        self._start = start
        self._commands: queue.SimpleQueue[tuple[Job, frozenset[int] | None] | None] = queue.SimpleQueue()
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._num_open = 0
        self._jobs: deque[Job] = deque()
        self._running: dict[int, _Running] = {}
        self._suspects: deque[_Running] = deque()
        self._is_closed = False

    @property
    def num_open(self) -> int:
        """Responses that wait or are being sampled."""
        return self._num_open

    def submit(self, requests: Sequence[StreamRequest], deliver: Deliver) -> Job:
        """Return the job of a request; callable from any thread.

        Args:
            requests: the responses to sample; their keys are replaced by their numbers in events.
            deliver: called in the loop's thread with the events of each step, in which a key is the number of
                the response in ``requests``.

        Raises:
            Overloaded: too many responses wait.
        """
        with self._lock:
            if self._num_open and self._num_open + len(requests) > MAX_OPEN:
                raise Overloaded(f"{self._num_open} responses wait or are being sampled; try again later.")
            self._num_open += len(requests)
            first = next(self._keys)
            for _ in requests[1:]:
                next(self._keys)

        def deliver_numbers(events: list[StreamEvent]) -> None:
            deliver([event._replace(key=event.key - first) for event in events])

        waiting = deque(each._replace(key=first + number) for number, each in enumerate(requests))
        job = Job(deliver_numbers, first, waiting)
        self._commands.put((job, None))
        return job

    def cancel(self, job: Job, numbers: Iterable[int] | None = None) -> None:
        """Drop the responses of a job, or some of them; callable from any thread, also when they have ended.

        Args:
            job: as ``submit`` returned it.
            numbers: numbers of the responses; None: all, and nothing more is delivered.
        """
        if numbers is None:
            job.is_cancelled = True
        self._commands.put((job, frozenset() if numbers is None else frozenset(numbers)))

    def close(self) -> None:
        """End ``run`` when all submitted jobs have ended; callable from any thread."""
        self._commands.put(None)

    def run(self) -> None:
        """Sample until ``close`` is called."""
        self._stream = self._start()
        try:
            while True:
                self._receive()
                self._admit()
                if self._running:
                    self._step()
                elif self._is_closed and not self._jobs and not self._suspects:
                    return
        finally:
            self._stream.close()

    def _receive(self) -> None:
        """Take commands in; without work, wait for one."""
        if not (self._running or self._jobs or self._suspects or self._is_closed):
            # Not a single wait without a timeout: a signal just before it would be handled only afterwards.
            while True:
                with contextlib.suppress(queue.Empty):
                    self._execute(self._commands.get(timeout=POLL_SECONDS))
                    break
        with contextlib.suppress(queue.Empty):
            while True:
                self._execute(self._commands.get_nowait())

    def _execute(self, command: tuple[Job, frozenset[int] | None] | None) -> None:
        if command is None:
            self._is_closed = True
        elif command[1] is None:
            if not command[0].is_cancelled:
                self._jobs.append(command[0])
            else:
                self._end_waiting(command[0])
        else:
            self._drop(command[0], command[1])

    def _drop(self, job: Job, numbers: frozenset[int]) -> None:
        if job.is_cancelled:
            keys = set(job.running)
            self._end_waiting(job)
        else:
            keys = {job.first + number for number in numbers} & job.running
        self._stream.abort(keys)
        self._suspects = deque(each for each in self._suspects if each.request.key not in keys)
        for key in keys:
            self._end(job, key)

    def _end_waiting(self, job: Job) -> None:
        with self._lock:
            self._num_open -= len(job.waiting)
        job.waiting.clear()
        with contextlib.suppress(ValueError):
            self._jobs.remove(job)

    def _end(self, job: Job, key: int) -> None:
        self._running.pop(key, None)
        job.running.discard(key)
        with self._lock:
            self._num_open -= 1

    def _admit(self) -> None:
        """Give free places to waiting responses, one job after the other."""
        if self._suspects:
            if not self._running:
                self._add(self._suspects.popleft())
            return
        while self._jobs and len(self._running) < self._stream.capacity:
            job = self._jobs.popleft()
            request = job.waiting.popleft()
            if job.waiting:
                self._jobs.append(job)
            job.running.add(request.key)
            self._add(_Running(job, request))

    def _add(self, response: _Running) -> None:
        try:
            self._stream.add(response.request)
        except Exception as error:
            self._deliver(response.job, [StreamEvent(response.request.key, error=error)])
            self._end(response.job, response.request.key)
        else:
            self._running[response.request.key] = response

    def _step(self) -> None:
        try:
            events = self._stream.step()
        except Exception as error:
            self._isolate(error)
            return
        by_job: dict[Job, list[StreamEvent]] = {}
        for event in events:
            response = self._running.get(event.key)
            if response is None:
                continue
            if response.num_skipped and event.error is None:
                response.num_skipped -= 1
            else:
                response.num_events += 1
                by_job.setdefault(response.job, []).append(event)
            if event.finish_reason is not None or event.error is not None:
                self._end(response.job, event.key)
        for job, own in by_job.items():
            self._deliver(job, own)

    def _isolate(self, error: Exception) -> None:
        """Find the response that makes a step fail: sample each of them again, alone."""
        failed = list(self._running.values())
        self._running.clear()
        with contextlib.suppress(Exception):
            self._stream.abort([each.request.key for each in failed])
            self._stream.close()
        self._stream = self._start()
        if len(failed) == 1:
            (only,) = failed
            self._deliver(only.job, [StreamEvent(only.request.key, error=error)])
            self._end(only.job, only.request.key)
        else:
            for each in failed:
                each.num_skipped = each.num_events
            self._suspects.extend(failed)

    def _deliver(self, job: Job, events: list[StreamEvent]) -> None:
        if job.is_cancelled:
            return
        try:
            job.deliver(events)
        except RuntimeError:  # The client's event loop has ended.
            self.cancel(job)
