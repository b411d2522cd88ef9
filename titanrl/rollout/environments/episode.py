"""One rollout in an environment, as the environment's event loop sees it."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.protocols import Completion, RolloutLimit, RolloutRequest, Sampling, Trajectory
from titanrl.protocols.environment import POLICY
from titanrl.rollout.environments.recorder import Recorder

if TYPE_CHECKING:
    from titanrl.protocols import Environment

__all__ = ["Asked", "Ended", "Episode", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one rollout."""

    max_length: int
    """Tokens of a row."""
    max_response_tokens: int
    """Tokens of a response."""
    max_turns: int
    """Requests of a rollout, over all agents."""


class Asked(NamedTuple):
    """A request of an episode, on its way to the sampler."""

    episode: Episode
    rollout: RolloutRequest
    sampling: Sampling
    max_tokens: int
    deliver: Callable[[Completion], None]
    """Hands the response over; callable from any thread."""
    at: float
    """Time of the request, monotonic seconds."""


class Ended(NamedTuple):
    """The end of an episode."""

    episode: Episode
    result: Trajectory | BaseException
    at: float


class Episode:
    """One rollout: it passes requests on to the sampler's thread and records them.

    Args:
        index: number of the rollout in its batch.
        request: the prompt.
        inbox: messages to the sampler's thread.
        limits: limits of the rollout.
        version: version of the weights.
        by_turn: see ``Recorder``.
    """

    def __init__(
        self,
        index: int,
        request: RolloutRequest,
        inbox: queue.SimpleQueue[Asked | Ended],
        limits: Limits,
        *,
        version: int,
        by_turn: bool,
    ) -> None:
        self.index, self.request = index, request
        self.recorder = Recorder(by_turn=by_turn)
        self.is_over = False
        """Whether the sampler's thread has its result; later messages are ignored."""
        self.own_seconds = 0.0
        """Time that the environment itself took, without the sampler's."""
        self.own_since: float | None = None
        """Start of the environment's present share; None while it waits for the sampler."""
        self.num_asked = 0
        """Requests that the sampler has not answered yet."""
        self._inbox, self._limits, self._version = inbox, limits, version
        self._turns = Counter[int]()

    @property
    def num_turns(self) -> int:
        """Number of requests so far."""
        return sum(self._turns.values())

    def room(self, ids: Sequence[int]) -> int:
        """See ``Ask``."""
        if self.num_turns >= self._limits.max_turns:
            return 0
        return max(0, min(self._limits.max_response_tokens, self._limits.max_length - len(ids)))

    async def __call__(self, ids: Sequence[int], sampling: Sampling = POLICY) -> Completion:
        """See ``Ask``."""
        ids = list(ids)
        if not ids:
            raise ValueError("ask() needs a prompt with at least one token.")
        room = self.room(ids)
        max_tokens = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        if room < 1:
            limits = self._limits
            used_up = (
                f"max_turns = {limits.max_turns}"
                if self.num_turns >= limits.max_turns
                else f"[training] seq_len = {limits.max_length}"
            )
            raise RolloutLimit(f"the rollout has used up {used_up}")
        if max_tokens < 1:
            raise ValueError(f"Sampling.max_tokens must be >= 1, got {sampling.max_tokens}.")
        turn = self._turns[sampling.agent_id]
        self._turns[sampling.agent_id] += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()

        def settle(completion: Completion) -> None:
            if not future.done():
                future.set_result(completion)

        rollout = self.request._replace(prompt_ids=ids, turn=turn)
        self._inbox.put(
            Asked(
                self,
                rollout,
                sampling,
                max_tokens,
                lambda completion: loop.call_soon_threadsafe(settle, completion),  # type: ignore[arg-type]
                time.monotonic(),
            )
        )
        completion = await future
        self.recorder.record(ids, completion, sampling, turn=turn, version=self._version)
        return completion

    async def run(self, environment: Environment) -> None:
        """Run the environment and report its result, whatever it is."""
        result: Any
        try:
            result = await environment.run(self.request, self)
            if not isinstance(result, Trajectory):
                result = TypeError(f"run() must return a Trajectory, got {type(result).__name__}")
        except BaseException as error:  # A task that ends by SystemExit would end the loop.
            result = error
        self._inbox.put(Ended(self, result, time.monotonic()))
