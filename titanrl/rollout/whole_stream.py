"""A token stream for samplers that return whole responses only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from titanrl.ops.seeds import turn_seed
from titanrl.protocols import FinishReason, StreamEvent, StreamRequest

if TYPE_CHECKING:
    from titanrl.protocols import Completion, Sampler

__all__ = ["WholeStream"]

CAPACITY = 128
"""Responses per call of the sampler."""


class WholeStream:
    """Responses of a sampler without ``stream``: waiting requests with equal parameters share one call.

    A response's tokens come together, when the call ends. Running calls cannot be aborted.

    Args:
        sampler: the live sampler.
        seed: the run's seed; a sampler derives the seed of a response from it and the request.
        step: the training step, which a sampler also derives the seed from.
    """

    def __init__(self, sampler: Sampler, seed: int, step: int = 0) -> None:
        self._sampler, self._seed, self._step = sampler, seed, step
        self.capacity = CAPACITY
        self._waiting: list[StreamRequest] = []

    def add(self, request: StreamRequest) -> None:
        self._waiting.append(request)

    def abort(self, keys: Iterable[int]) -> None:
        dropped = frozenset(keys)
        self._waiting = [request for request in self._waiting if request.key not in dropped]

    def step(self) -> list[StreamEvent]:
        if not self._waiting:
            return []
        parameters = _parameters(self._waiting[0])
        together = [request for request in self._waiting if _parameters(request) == parameters]
        self._waiting = [request for request in self._waiting if _parameters(request) != parameters]
        try:
            return self._sample(together)
        except Exception:
            # One of them is at fault; each gets its own response or error.
            return [event for request in together for event in self._sample_alone(request)]

    def close(self) -> None:
        self._waiting.clear()

    def _sample_alone(self, request: StreamRequest) -> list[StreamEvent]:
        try:
            return self._sample([request])
        except Exception as error:
            return [StreamEvent(request.key, error=error)]

    def _sample(self, requests: Sequence[StreamRequest]) -> list[StreamEvent]:
        temperature, max_tokens, turn = _parameters(requests[0])
        completions = self._sampler.sample(
            [request.rollout for request in requests],
            step=self._step,
            seed=turn_seed(self._seed, turn),
            temperature=temperature,
            greedy=temperature is None,
            max_tokens=max_tokens,
        )
        pairs = zip(requests, completions, strict=True)
        return [event for request, completion in pairs for event in _events(request.key, completion)]


def _parameters(request: StreamRequest) -> tuple[float | None, int, int]:
    return request.temperature, request.max_tokens, request.rollout.turn


def _events(key: int, completion: Completion) -> list[StreamEvent]:
    pairs = zip(completion.ids, completion.logprobs, strict=True)
    events = [StreamEvent(key, int(token), float(logprob)) for token, logprob in pairs]
    if not events:
        return [StreamEvent(key, error=RuntimeError("the sampler returned a response without tokens."))]
    events[-1] = events[-1]._replace(finish_reason=FinishReason(completion.finish_reason))
    return events
