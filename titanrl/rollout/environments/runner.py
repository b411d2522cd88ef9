"""Rollouts in an environment: the sampler runs in this thread, the environment in an event loop beside it."""

from __future__ import annotations

import itertools
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from titanrl.ops.seeds import sample_seed, turn_seed
from titanrl.protocols import Completion, RolloutLimit, StreamRequest, TokenStream, Trajectory
from titanrl.rollout.environments.episode import Asked, Ended, Episode, Limits
from titanrl.rollout.environments.loop_thread import LoopThread
from titanrl.rollout.environments.recorder import RecordedRow

if TYPE_CHECKING:
    from titanrl.protocols import Environment, RolloutRequest

__all__ = ["EnvironmentRunner", "Rollout"]

GATHER_SECONDS = 0.02
"""Longest wait for the next requests of rollouts whose responses have just ended: they are then computed
together."""
POLL_SECONDS = 0.1
"""Interval at which times are checked while nothing is sampled."""


class Rollout(NamedTuple):
    """One finished or failed rollout; can be pickled."""

    rows: list[RecordedRow]
    """Its rows with the numbers of their requests; empty: nothing was sampled."""
    trajectory: Trajectory
    last_ids: list[int]
    """Its last trained response."""
    num_turns: int
    """Requests to the policy."""
    seconds: float
    """Time that the environment itself took."""
    error: str = ""
    """Reason why the environment gave no result; empty: it did."""
    is_limited: bool = False
    """Whether the rollout ended because its turns or its context were used up."""

    @classmethod
    def of(
        cls, episode: Episode, trajectory: Trajectory, error: str = "", *, is_limited: bool = False
    ) -> Rollout:
        """Return the rollout of an episode that has ended."""
        rows = list(episode.recorder.rows())
        if trajectory.rows is not None:
            rows = [RecordedRow(row, tuple(row.turns)) for row in trajectory.rows]
        last_ids, seconds = episode.recorder.last_ids, episode.own_seconds
        return cls(rows, trajectory, last_ids, episode.num_turns, seconds, error, is_limited)


class _Response:
    """A response that is being sampled."""

    __slots__ = ("asked", "ids", "logprobs")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.ids: list[int] = []
        self.logprobs: list[float] = []


class EnvironmentRunner:
    """Runs rollouts in a live environment, many at a time.

    The sampler never waits for an environment while it has anything to sample. A rollout whose environment
    exceeds ``timeout_seconds`` of its own time fails alone. If it blocks the event loop, the rollout that
    blocks it fails, and the others begin again in a new loop.

    Args:
        environment: the live environment.
        limits: limits of a rollout.
        timeout_seconds: longest time of the environment itself in one rollout.
        concurrency: rollouts at a time.
        by_turn: whether each turn is a row of its own.
    """

    def __init__(
        self,
        environment: Environment,
        limits: Limits,
        *,
        timeout_seconds: float,
        concurrency: int,
        by_turn: bool,
    ) -> None:
        self._environment, self._limits = environment, limits
        self._timeout, self._concurrency, self._by_turn = timeout_seconds, concurrency, by_turn
        self._thread = LoopThread()

    def run(
        self,
        requests: Sequence[RolloutRequest],
        open_stream: Callable[[], TokenStream],
        *,
        step: int,
        seed: int,
        temperature: float | None,
        version: int,
    ) -> list[Rollout]:
        """Return one rollout per request, in order.

        Args:
            requests: the prompts.
            open_stream: opens the sampler's token stream.
            step: training step, part of the seeds.
            seed: the run's seed.
            temperature: divides the logits; None: take the most probable tokens.
            version: version of the sampler's weights.

        Raises:
            Exception: the sampler failed.
        """
        return _Batch(self, requests, open_stream, (seed, step), temperature, version).run()

    def close(self) -> None:
        """Leave the event loop, and close the environment."""
        self._thread.leave()
        self._environment.close()


class _Batch:
    """The rollouts of one call of ``EnvironmentRunner.run``."""

    def __init__(
        self,
        runner: EnvironmentRunner,
        requests: Sequence[RolloutRequest],
        open_stream: Callable[[], TokenStream],
        seed: tuple[int, int],
        temperature: float | None,
        version: int,
    ) -> None:
        self._runner, self._requests, self._open_stream = runner, requests, open_stream
        self._seed, self._temperature, self._version = seed, temperature, version
        self._inbox: queue.SimpleQueue[Asked | Ended] = queue.SimpleQueue()
        self._owners = itertools.count()
        self._live: dict[int, Episode] = {}
        """Owner's number in the event loop -> episode."""
        self._keys = itertools.count()
        self._responses: dict[int, _Response] = {}
        self._rollouts: dict[int, Rollout] = {}
        self._thinking: set[Episode] = set()
        """Episodes whose response ended in the last step and that have not asked again."""

    def run(self) -> list[Rollout]:
        waiting = deque(range(len(self._requests)))
        self._stream = self._open_stream()
        try:
            while waiting or self._live:
                while waiting and len(self._live) < self._runner._concurrency:
                    self._begin(waiting.popleft())
                self._receive()
                if self._responses:
                    self._sample()
                self._check_times()
        finally:
            for owner in self._live:
                self._runner._thread.cancel(owner)
            self._stream.close()
        return [self._rollouts[index] for index in range(len(self._requests))]

    def _begin(self, index: int) -> None:
        runner, owner = self._runner, next(self._owners)
        episode = Episode(
            index,
            self._requests[index],
            self._inbox,
            runner._limits,
            version=self._version,
            by_turn=runner._by_turn,
        )
        episode.own_since = time.monotonic()
        self._live[owner] = episode
        self._thinking.add(episode)
        runner._thread.start(episode.run(runner._environment), owner)

    def _receive(self) -> None:
        """Take messages in: without anything to sample, wait for some."""
        messages: list[Asked | Ended] = []
        until = time.monotonic() + (GATHER_SECONDS if self._responses else POLL_SECONDS)
        while True:
            left = until - time.monotonic()
            try:
                if left > 0 and (self._thinking or not self._responses):
                    messages.append(self._inbox.get(timeout=left))
                else:
                    messages.append(self._inbox.get_nowait())
            except queue.Empty:
                break
            self._thinking.discard(messages[-1].episode)
            if not self._responses and len(messages) == 1:
                until = time.monotonic() + GATHER_SECONDS
            if not self._thinking and self._inbox.empty():
                break
        # The order of the rollouts, not of the messages, so that batches depend on it as little as possible.
        for message in sorted(messages, key=lambda each: each.episode.index):
            if message.episode.is_over:
                continue
            if isinstance(message, Asked):
                self._add(message)
            else:
                self._end(message)

    def _add(self, asked: Asked) -> None:
        episode, request = asked.episode, asked.rollout
        if episode.own_since is not None:
            episode.own_seconds += asked.at - episode.own_since
            episode.own_since = None
        episode.num_asked += 1
        first = sample_seed(self._seed[0], self._seed[1], request.prompt_index, request.sample_index)
        key = next(self._keys)
        self._stream.add(
            StreamRequest(
                key,
                request,
                turn_seed(first, request.turn, asked.sampling.agent_id),
                self._temperature,
                asked.max_tokens,
            )
        )
        self._responses[key] = _Response(asked)

    def _sample(self) -> None:
        for event in self._stream.step():
            response = self._responses.get(event.key)
            if response is None:
                continue
            if event.error is not None:
                raise event.error
            response.ids.append(event.token)
            response.logprobs.append(event.logprob)
            if event.finish_reason is not None:
                del self._responses[event.key]
                episode = response.asked.episode
                episode.num_asked -= 1
                if not episode.num_asked:
                    episode.own_since = time.monotonic()
                self._thinking.add(episode)
                response.asked.deliver(Completion(response.ids, response.logprobs, event.finish_reason))

    def _check_times(self) -> None:
        now, limit = time.monotonic(), self._runner._timeout
        late = [
            owner
            for owner, episode in self._live.items()
            if episode.own_since is not None and episode.own_seconds + now - episode.own_since > limit
        ]
        if not late:
            return
        thread = self._runner._thread
        if thread.answers():
            for owner in late:
                thread.cancel(owner)
                self._fail(owner, f"timed out: the environment took more than {limit:g} s of its own")
            return
        culprit = thread.running_owner()
        culprit = culprit if culprit in self._live else late[0]
        self._fail(culprit, f"timed out: the environment blocked its event loop for more than {limit:g} s")
        thread.leave()
        self._runner._thread = LoopThread()
        for owner, episode in list(self._live.items()):
            self._drop(owner)
            self._begin(episode.index)

    def _end(self, ended: Ended) -> None:
        episode, result = ended.episode, ended.result
        owner = self._owner_of(episode)
        if episode.own_since is not None:
            episode.own_seconds += ended.at - episode.own_since
        if isinstance(result, Trajectory):
            self._finish(owner, Rollout.of(episode, result))
        elif isinstance(result, RolloutLimit):
            self._finish(owner, Rollout.of(episode, Trajectory(), str(result), is_limited=True))
        else:
            self._fail(owner, f"{type(result).__name__}: {result}")

    def _fail(self, owner: int, reason: str) -> None:
        self._finish(owner, Rollout.of(self._live[owner], Trajectory(), reason))

    def _finish(self, owner: int, rollout: Rollout) -> None:
        self._rollouts[self._live[owner].index] = rollout
        self._drop(owner)

    def _drop(self, owner: int) -> None:
        """Forget an episode, and whatever is being sampled for it."""
        episode = self._live.pop(owner)
        episode.is_over = True
        self._thinking.discard(episode)
        keys = [key for key, each in self._responses.items() if each.asked.episode is episode]
        self._stream.abort(keys)
        for key in keys:
            del self._responses[key]

    def _owner_of(self, episode: Episode) -> int:
        return next(owner for owner, each in self._live.items() if each is episode)
