"""Generation for the web server: prompts are tokenized in threads, the engine samples, rewards rank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from titanrl.ops.seeds import sample_seed
from titanrl.protocols import Completion, FinishReason, StreamRequest
from titanrl.serve.best_of_n import (
    GenerationRequest,
    GenerationResult,
    RankedResponse,
    ScoringJob,
    TokenLogprob,
)
from titanrl.serve.text import TextStream, cut_at_stop

if TYPE_CHECKING:
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.protocols import RolloutRequest, StreamEvent
    from titanrl.serve.engine import EngineLoop
    from titanrl.serve.http import Batcher
    from titanrl.serve.prompts import PromptEncoder

__all__ = ["Delta", "Generates", "Generation", "ModelService"]

Parsed = TypeVar("Parsed")
NUM_ENCODERS = 2
"""Threads that tokenize prompts."""


class Delta(NamedTuple):
    """A piece of a response."""

    prompt: int
    """Number of the prompt in the request."""
    response: RankedResponse
    """The new text and tokens. Scores and finish reason are those of the whole response."""
    is_last: bool
    sample: int
    """Number of the response among those to the prompt."""


class Generates(Protocol):
    """The responses to one request over HTTP, while they are generated."""

    async def results(self) -> list[GenerationResult]:
        """Return the complete responses to each prompt.

        Raises:
            TrainingError: the rewards failed.
            Exception: the model failed.
        """
        ...

    def deltas(self) -> AsyncIterator[Delta]:
        """Yield the responses piece by piece; ``results`` returns them as a whole afterwards."""
        ...

    def close(self) -> None:
        """Drop what is not sampled yet."""
        ...


class ModelService:
    """The model behind the web server.

    Args:
        engine: samples the responses, in another thread.
        encode: request -> one rollout request per response.
        ranker: scores the responses, in another thread.
        tokenizer: decodes the responses.
        seed: the run's seed, part of the seeds of all responses.
        temperature: the sampler's temperature.
    """

    def __init__(
        self,
        engine: EngineLoop,
        encode: PromptEncoder,
        ranker: Batcher[ScoringJob, list[RankedResponse] | Exception],
        tokenizer: ChatTokenizer,
        *,
        seed: int,
        temperature: float,
    ) -> None:
        self.engine, self.ranker, self.tokenizer = engine, ranker, tokenizer
        self._encode, self._seed, self._temperature = encode, seed, temperature
        self._threads = ThreadPoolExecutor(NUM_ENCODERS, "titanrl-encode")

    async def call(self, function: Callable[[], Parsed]) -> Parsed:
        """Return the result of a function that may take long, without keeping other requests waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def open(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Start the generation of responses.

        Raises:
            ValueError: a prompt is invalid or too long.
            Overloaded: too many responses wait.
        """
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._threads, lambda: [self._encode(each) for each in requests])
        generation = Generation(self, requests, encoded, loop)
        generation.job = self.engine.submit(
            [
                self._stream_request(request, rollout)
                for request, rollouts in zip(requests, encoded, strict=True)
                for rollout in rollouts
            ],
            generation.deliver,
        )
        return generation

    def _stream_request(self, request: GenerationRequest, rollout: RolloutRequest) -> StreamRequest:
        temperature = self._temperature if request.temperature is None else request.temperature
        return StreamRequest(
            key=0,
            rollout=rollout,
            seed=sample_seed(self._seed, 0, rollout.prompt_index, rollout.sample_index),
            temperature=temperature or None,
            max_tokens=self._encode.max_tokens(request),
            num_top=request.num_top or 0,
        )


class _Response:
    """A response that is being sampled."""

    def __init__(self, request: GenerationRequest, tokenizer: ChatTokenizer, is_streamed: bool) -> None:
        self.request, self._tokenizer = request, tokenizer
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[Sequence[tuple[int, float]]] = []
        self.finish_reason: int | None = None
        reads_text = is_streamed or bool(request.stop)
        self._stream = TextStream(tokenizer.decode, request.stop) if reads_text else None
        self._num_sent = 0

    def add(self, event: StreamEvent) -> bool:
        """Take one token in; return whether a stop text ends the response."""
        self.ids.append(event.token)
        self.logprobs.append(event.logprob)
        self.tops.append(event.top)
        self.finish_reason = event.finish_reason
        has_stop = self._stream is not None and self._stream.add([event.token])
        if has_stop:
            self.finish_reason = FinishReason.STOP
        return has_stop

    def complete(self) -> tuple[Completion, RankedResponse]:
        """Return the sampled tokens, and the response without scores."""
        text, count = cut_at_stop(self._tokenizer.decode, self.ids, self.request.stop)
        assert self.finish_reason is not None
        completion = Completion(self.ids, self.logprobs, self.finish_reason)
        if count is not None:
            completion = completion.truncated(count, FinishReason.STOP)
        tokens = () if self.request.num_top is None else self._tokens(0, len(completion.ids))
        response = RankedResponse(text, len(completion.ids), completion.finish_reason, tokens=tokens)
        return completion, response

    def take(self, complete: RankedResponse | None) -> RankedResponse | None:
        """Return what is new since the last call; None if there is nothing.

        Args:
            complete: the response, if it has ended.
        """
        assert self._stream is not None
        text = self._stream.take() if complete is None else self._stream.finish(complete.text)
        if complete is None and not text:
            return None
        end = len(self.ids) if complete is None else complete.num_tokens
        tokens = () if self.request.num_top is None else self._tokens(self._num_sent, end)
        self._num_sent = max(end, self._num_sent)
        if complete is not None:
            return complete._replace(text=text, tokens=tokens)
        return RankedResponse(text, len(self.ids), -1, tokens=tokens)

    def _tokens(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        if end and self.ids[end - 1] in self._tokenizer.eos_ids:
            end -= 1  # The end token is no part of the text.
        if start >= end:
            return ()
        first = max(start - 1, 0)
        texts = self._tokenizer.token_strings(self.ids[first:end])[start - first :]
        decode = self._tokenizer.decode_prompt
        return tuple(
            TokenLogprob(text, logprob, tuple((decode([token]), each) for token, each in top))
            for text, logprob, top in zip(texts, self.logprobs[start:end], self.tops[start:end], strict=True)
        )


class Generation:
    """The responses to one request, see ``Generates``.

    Args:
        service: the model.
        requests: the prompts of the request.
        encoded: the rollout requests of each prompt.
        loop: the event loop that waits for the responses.
    """

    def __init__(
        self,
        service: ModelService,
        requests: Sequence[GenerationRequest],
        encoded: Sequence[Sequence[RolloutRequest]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._service, self._requests, self._encoded, self._loop = service, requests, encoded, loop
        self._events: asyncio.Queue[list[StreamEvent]] = asyncio.Queue()
        self._responses: list[_Response] = []
        self._places = [
            (prompt, sample) for prompt, rollouts in enumerate(encoded) for sample in range(len(rollouts))
        ]
        self._num_open = len(self._places)
        self._results: list[GenerationResult] = []
        self.job: object = None

    def deliver(self, events: list[StreamEvent]) -> None:
        """Take the events of one step of the engine; called in its thread.

        Raises:
            RuntimeError: the event loop has ended.
        """
        self._loop.call_soon_threadsafe(self._events.put_nowait, events)

    async def results(self) -> list[GenerationResult]:
        if not self._responses:
            self._begin(is_streamed=False)
        while self._num_open:
            await self._next()
        if not self._results:
            self._results = await self._rank(await asyncio.to_thread(self._complete))
        return self._results

    async def deltas(self) -> AsyncIterator[Delta]:
        self._begin(is_streamed=True)
        if any(request.is_ranked for request in self._requests):
            for prompt, result in enumerate(await self.results()):
                for sample, ranked in enumerate(result.ranked):
                    yield Delta(prompt, ranked, True, sample)
            return
        while self._num_open:
            for number in await self._next():
                response = self._responses[number]
                is_last = response.finish_reason is not None
                piece = response.take(response.complete()[1] if is_last else None)
                if piece is not None:
                    prompt, sample = self._places[number]
                    yield Delta(prompt, piece, is_last, sample)

    def close(self) -> None:
        if self._num_open:
            self._service.engine.cancel(self.job)  # type: ignore[arg-type]
            self._num_open = 0

    def _begin(self, *, is_streamed: bool) -> None:
        tokenizer = self._service.tokenizer
        self._responses = [
            _Response(self._requests[prompt], tokenizer, is_streamed) for prompt, _ in self._places
        ]

    async def _next(self) -> list[int]:
        """Wait for new tokens; return the numbers of their responses."""
        changed: dict[int, None] = {}
        for event in await self._events.get():
            response = self._responses[event.key]
            if event.error is not None:
                raise event.error
            if response.finish_reason is not None:
                continue  # Sampled before the engine heard of the stop text.
            has_stop = response.add(event)
            if has_stop and event.finish_reason is None:
                self._service.engine.cancel(self.job, [event.key])  # type: ignore[arg-type]
            changed[event.key] = None
            self._num_open -= response.finish_reason is not None
        return list(changed)

    def _complete(self) -> list[tuple[Completion, RankedResponse]]:
        return [response.complete() for response in self._responses]

    async def _rank(self, completed: Sequence[tuple[Completion, RankedResponse]]) -> list[GenerationResult]:
        remaining = iter(completed)
        results = []
        jobs: dict[int, ScoringJob] = {}
        for prompt, (request, rollouts) in enumerate(zip(self._requests, self._encoded, strict=True)):
            own = [next(remaining) for _ in rollouts]
            responses = [response for _, response in own]
            if request.is_ranked:
                completions = [completion for completion, _ in own]
                decode = self._service.tokenizer.decode_response
                texts = [cut_at_stop(decode, each.ids, request.stop)[0] for each in completions]
                has_reference = request.reference is not None
                jobs[prompt] = ScoringJob(rollouts, completions, responses, texts, has_reference)
            results.append(GenerationResult(len(rollouts[0].prompt_ids), responses))
        if jobs:
            scored = await asyncio.wrap_future(self._service.ranker.submit([*jobs.values()]))
            for prompt, ranked in zip(jobs, scored, strict=True):
                if isinstance(ranked, Exception):
                    raise ranked
                results[prompt] = results[prompt]._replace(ranked=ranked)
        return results
