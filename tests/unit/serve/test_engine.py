"""The loop of the engine: requests take turns, leave at any time, and fail alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from titanrl.protocols import Completion, FinishReason, RolloutRequest, StreamEvent, StreamRequest
from titanrl.rollout.whole_stream import WholeStream
from titanrl.serve import engine
from titanrl.serve.engine import EngineLoop, Overloaded


class Counter:
    """A stream whose response to the prompt [n] is n, n + 1, ...; a step waits until it is allowed."""

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self.active: dict[int, tuple[StreamRequest, int]] = {}
        self.steps: list[list[int]] = []
        self.allowed = threading.Semaphore(0)
        self.is_free = True
        self.num_closed = 0

    def add(self, request: StreamRequest) -> None:
        if request.rollout.prompt_ids[0] == 13:
            raise ValueError("13 is refused")
        self.active[request.key] = (request, 0)

    def abort(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.active.pop(key, None)

    def step(self) -> list[StreamEvent]:
        if not self.is_free:
            assert self.allowed.acquire(timeout=10)
        self.steps.append([request.rollout.prompt_ids[0] for request, _ in self.active.values()])
        if 666 in self.steps[-1] and self.active and max(count for _, count in self.active.values()) >= 1:
            raise MemoryError("out of memory")
        events = []
        for key, (request, count) in [*self.active.items()]:
            is_last = count + 1 == request.max_tokens
            reason = FinishReason.LENGTH if is_last else None
            events.append(StreamEvent(key, request.rollout.prompt_ids[0] + count, finish_reason=reason))
            self.active[key] = (request, count + 1)
            if is_last:
                del self.active[key]
        return events

    def close(self) -> None:
        self.active.clear()
        self.num_closed += 1


class Client:
    """Collects the events of one job."""

    def __init__(self, num_responses: int) -> None:
        self.events: list[StreamEvent] = []
        self._open, self._ended = num_responses, threading.Event()

    def deliver(self, events: list[StreamEvent]) -> None:
        self.events += events
        self._open -= sum(each.finish_reason is not None or each.error is not None for each in events)
        if self._open == 0:
            self._ended.set()

    def tokens(self, number: int = 0) -> list[int]:
        assert self._ended.wait(10)
        return [each.token for each in self.events if each.key == number and each.error is None]

    def errors(self) -> list[str]:
        assert self._ended.wait(10)
        return [repr(each.error) for each in self.events if each.error is not None]


def requests(prompt: int, count: int = 1, max_tokens: int = 3) -> list[StreamRequest]:
    rollouts = [RolloutRequest([prompt], 0, index) for index in range(count)]
    return [StreamRequest(0, rollout, 0, 1.0, max_tokens) for rollout in rollouts]


@contextmanager
def running(start: Callable[[], Any]) -> Iterator[EngineLoop]:
    loop = EngineLoop(start)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.close()
        thread.join(10)
        assert not thread.is_alive()
        assert loop.num_open == 0


def submit(loop: EngineLoop, *arguments: Any, **given: Any) -> tuple[Client, Any]:
    own = requests(*arguments, **given)
    client = Client(len(own))
    return client, loop.submit(own, client.deliver)


def test_events_of_a_job_have_its_own_numbers() -> None:
    stream = Counter()
    with running(lambda: stream) as loop:
        first, _ = submit(loop, 10, 2)
        second, _ = submit(loop, 20, 2)
        assert [first.tokens(0), first.tokens(1)] == [[10, 11, 12]] * 2
        assert [second.tokens(0), second.tokens(1)] == [[20, 21, 22]] * 2
    assert stream.num_closed == 1


def test_requests_take_turns() -> None:
    """A request for many responses does not keep a later one for a single response waiting."""
    stream = Counter(capacity=2)
    stream.is_free = False
    with running(lambda: stream) as loop:
        many, _ = submit(loop, 10, 8, max_tokens=1)
        stream.allowed.release()
        while not stream.steps:
            pass
        one, _ = submit(loop, 20, 1, max_tokens=1)
        stream.is_free = True
        stream.allowed.release(9)
        assert one.tokens() == [20]
        assert many.tokens(7) == [10]
    assert 20 in [prompt for step in stream.steps[:3] for prompt in step]


def test_cancelled_responses_leave_the_engine() -> None:
    stream = Counter(capacity=2)
    stream.is_free = False
    with running(lambda: stream) as loop:
        gone, job = submit(loop, 10, 5, max_tokens=1000)
        stopped, part = submit(loop, 20, 2, max_tokens=1000)
        stream.allowed.release(2)
        while len(stream.steps) < 2:
            pass
        loop.cancel(job)
        loop.cancel(job)
        stream.allowed.release(4)
        while len(stream.steps) < 6:
            pass
        assert set(stream.steps[-1]) == {20}
        count = len(gone.events)
        loop.cancel(part, [1])
        loop.cancel(part, [0, 7])
        stream.allowed.release(4)
        last, _ = submit(loop, 30, 1)
        stream.allowed.release(4)
        assert last.tokens() == [30, 31, 32]
        assert stopped.events
        assert len(gone.events) == count


def test_job_that_is_cancelled_before_it_starts_is_not_sampled() -> None:
    stream = Counter()
    loop = EngineLoop(lambda: stream)
    client, job = submit(loop, 10, 3)
    loop.cancel(job)
    loop.close()
    loop.run()
    assert (client.events, stream.steps, loop.num_open) == ([], [], 0)


def test_request_that_is_refused_or_fails_does_so_alone() -> None:
    streams: list[Counter] = []

    def start() -> Counter:
        streams.append(Counter())
        return streams[-1]

    loop = EngineLoop(start)
    clients = {prompt: submit(loop, prompt, max_tokens=5)[0] for prompt in (10, 13, 666, 20)}
    loop.close()
    loop.run()
    assert clients[10].tokens() == [10, 11, 12, 13, 14]
    assert clients[20].tokens() == [20, 21, 22, 23, 24]
    assert clients[13].errors() == ["ValueError('13 is refused')"]
    assert clients[666].errors() == ["MemoryError('out of memory')"]
    assert [stream.num_closed for stream in streams] == [1] * len(streams)
    assert loop.num_open == 0


def test_client_whose_event_loop_has_ended_is_dropped() -> None:
    def closed(events: list[StreamEvent]) -> None:
        raise RuntimeError("Event loop is closed")

    stream = Counter()
    loop = EngineLoop(lambda: stream)
    loop.submit(requests(10, 1, 1000), closed)
    other, _ = submit(loop, 20)
    loop.close()
    loop.run()
    assert other.tokens() == [20, 21, 22]
    assert len(stream.steps) < 10


def test_too_many_waiting_responses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_OPEN", 4)
    loop = EngineLoop(Counter)
    many, _ = submit(loop, 10, 6)
    with pytest.raises(Overloaded, match="6 responses wait"):
        submit(loop, 20)
    loop.close()
    loop.run()
    assert many.tokens(5) == [10, 11, 12]


class Plain:
    """A sampler without a stream, which fails on a temperature."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def sample(self, rows: Any, **given: Any) -> list[Completion]:
        self.calls.append(len(rows))
        if any(row.prompt_ids == [13] for row in rows):
            raise ValueError("13 is refused")
        count = given["max_tokens"]
        return [Completion([row.prompt_ids[0]] * count, [-0.5] * count, 1) for row in rows]


def test_sampler_without_a_stream_serves_whole_responses() -> None:
    plain = Plain()
    loop = EngineLoop(lambda: WholeStream(plain, 3))  # type: ignore[arg-type]
    clients = {prompt: submit(loop, prompt, 2)[0] for prompt in (10, 13, 20)}
    longer, _ = submit(loop, 30, max_tokens=4)
    loop.close()
    loop.run()
    assert clients[10].tokens(1) == [10] * 3
    assert clients[20].tokens(0) == [20] * 3
    assert clients[13].errors() == ["ValueError('13 is refused')"] * 2
    assert longer.tokens() == [30] * 4
    assert plain.calls == [6, 1, 1, 1, 1, 1, 1, 1]
