"""The stream of the `torch` sampler: the same responses as `sample`, however requests come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.samplers.test_torch_sampler import PROMPTS, engine_of, host_of, rows_of
from titanrl.components.samplers.torch import Torch
from titanrl.engine.engine import Engine
from titanrl.models import tiny
from titanrl.ops.seeds import sample_seed, uniforms
from titanrl.protocols import Completion, FinishReason, RolloutRequest, StreamEvent, StreamRequest


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tiny.create(tmp_path_factory.mktemp("model"), scale=0.4, layers=2)
    engine = engine_of(folder)
    yield engine
    engine.close()


def request_of(
    key: int, row: RolloutRequest, temperature: float | None = 1.0, **fields: Any
) -> StreamRequest:
    seed = sample_seed(7, 0, row.prompt_index, row.sample_index)
    return StreamRequest(key, row, seed, temperature, **{"max_tokens": 24, **fields})


def gather(events: Sequence[StreamEvent]) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    for event in events:
        before = found.get(event.key, Completion([], [], -1))
        assert before.finish_reason == -1, "no token follows the last one"
        reason = -1 if event.finish_reason is None else event.finish_reason
        found[event.key] = Completion([*before.ids, event.token], [*before.logprobs, event.logprob], reason)
    return found


def run(stream: Any) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while new := stream.step():
        events += new
    return events


def check_equal(found: Completion, wanted: Completion) -> None:
    assert (list(found.ids), found.finish_reason) == (list(wanted.ids), wanted.finish_reason)
    torch.testing.assert_close(
        torch.tensor(found.logprobs), torch.tensor(wanted.logprobs), atol=1e-5, rtol=2e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("max_rows", [2, 128])
def test_responses_are_those_of_sample_whenever_requests_come_and_go(engine: Engine, max_rows: int) -> None:
    sampler = Torch(max_response_tokens=10, max_rows=max_rows, top_p=0.95).start(host_of(engine))
    rows = rows_of(samples=3)
    wanted = sampler.sample(rows, step=0, seed=7)
    stream, order = sampler.stream(), random.Random(3)
    waiting = [request_of(key, row, max_tokens=10) for key, row in enumerate(rows)]
    order.shuffle(waiting)
    aborted = {waiting[2].key, waiting[5].key, waiting[-1].key}
    events: list[StreamEvent] = []
    for request in waiting:
        stream.add(request)
        for _ in range(order.randrange(3)):
            events += stream.step()
        if request.key in aborted:
            stream.abort([request.key, 999])
    events += run(stream)
    stream.close()
    found = gather(events)
    for key, response in enumerate(wanted):
        if key not in aborted:
            check_equal(found[key], response)
    assert all(found[key].finish_reason == -1 for key in aborted & set(found))
    assert stream._cache.num_rows == 0


@pytest.mark.slow
def test_each_row_has_its_own_parameters(engine: Engine) -> None:
    sampler = Torch(max_response_tokens=24).start(host_of(engine))
    rows = rows_of(samples=1)
    stream = sampler.stream()
    stream.add(request_of(0, rows[0], None))
    stream.add(request_of(1, rows[1], 0.5, max_tokens=3))
    stream.add(request_of(2, rows[2], 1.3, num_top=2))
    events = run(stream)
    stream.close()
    found = gather(events)
    check_equal(found[0], sampler.sample(rows[:1], step=0, seed=7, greedy=True)[0])
    check_equal(found[1], sampler.sample(rows[1:2], step=0, seed=7, temperature=0.5, max_tokens=3)[0])
    check_equal(found[2], sampler.sample(rows[2:], step=0, seed=7, temperature=1.3)[0])
    assert found[1].finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    for event in events:
        assert len(event.top) == (2 if event.key == 2 else 0)
        if event.top:
            (best, first), (_, second) = event.top
            assert first >= second
            assert event.logprob <= first + 1e-5
            assert event.token != best or event.logprob == pytest.approx(first, abs=1e-5)


def test_invalid_request_is_refused_alone(engine: Engine) -> None:
    stream = Torch().start(host_of(engine)).stream()
    stream.add(request_of(0, RolloutRequest(PROMPTS[0], 0, 0), max_tokens=2))
    for prompt in ([], [1] * 63):
        with pytest.raises(ValueError, match="tokens"):
            stream.add(request_of(1, RolloutRequest(prompt, 0, 0)))
    assert set(gather(run(stream))) == {0}
    stream.close()


def test_long_prompts_are_spread_over_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanrl.components.samplers.torch.stream.PROMPT_TOKENS", 30)
    stream = Torch().start(host_of(engine)).stream()
    for key, length in enumerate((12, 12, 12, 40, 2)):
        stream.add(request_of(key, RolloutRequest([5 + key] * length, 0, key)))
    firsts = [{event.key for event in stream.step()} for _ in range(3)]
    stream.close()
    assert firsts[0] == {0, 1}
    assert 2 in firsts[1]
    assert 3 not in firsts[1]
    assert 3 in firsts[2]
    assert 4 not in firsts[2]


def test_random_numbers_of_a_row_follow_its_own_position() -> None:
    seeds = torch.tensor([3, 2**62, 9], dtype=torch.int64)
    rows = torch.tensor([0, 5, 4000], dtype=torch.int64)
    together = uniforms(seeds, rows)
    alone = [float(uniforms(seeds[row : row + 1], int(rows[row]))) for row in range(3)]
    assert together.tolist() == alone
