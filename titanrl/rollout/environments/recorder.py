"""The rows of a rollout, recorded from the requests that its environment makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from titanrl.protocols import Completion, FinishReason, Sampling, TrajectoryRow

__all__ = ["RecordedRow", "Recorder"]


class RecordedRow(NamedTuple):
    """A row of a rollout."""

    row: TrajectoryRow
    requests: tuple[int, ...]
    """Numbers of its requests among all of the rollout."""
    lengths: tuple[int, ...] = ()
    """Tokens that were sampled for each of them."""


@dataclass(slots=True)
class _Row:
    """A prompt, and what followed it."""

    prompt_ids: list[int]
    agent_id: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    """Numbers of its requests among all of the rollout."""
    lengths: list[int] = field(default_factory=list)
    finish_reason: int = FinishReason.ABORT

    def begins(self, ids: Sequence[int]) -> bool:
        """Return whether ``ids`` continue this row."""
        first, second = len(self.prompt_ids), len(self.prompt_ids) + len(self.ids)
        return len(ids) >= second and ids[:first] == self.prompt_ids and ids[first:second] == self.ids

    def extend(self, ids: Sequence[int], logprobs: Sequence[float], mask: bool, version: int) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [mask] * len(ids)
        self.versions += [version] * len(ids)


class Recorder:
    """Collects the requests of one rollout as rows.

    A request whose prompt begins with all tokens of a row of the same agent continues this row: what lies
    between is given text. Otherwise it starts a row, whose prompt holds everything before the response.

    Args:
        by_turn: whether each request is a row of its own, for advantages that compare turns.
    """

    def __init__(self, *, by_turn: bool = False) -> None:
        self._by_turn = by_turn
        self._rows: list[_Row] = []
        self.num_requests = 0
        self.last_ids: list[int] = []
        """The trained response that was recorded last, which ends the rollout so far."""

    def record(
        self,
        ids: Sequence[int],
        completion: Completion,
        sampling: Sampling,
        *,
        turn: int,
        version: int,
    ) -> None:
        """Add one request and the response to it.

        Args:
            ids: prompt of the request.
            completion: the response.
            sampling: parameters of the request.
            turn: number of the request among those of its agent.
            version: version of the weights that sampled the response.
        """
        ids, number = list(ids), self.num_requests
        self.num_requests += 1
        if not sampling.is_trained:
            return
        row = None if self._by_turn else self._row_before(ids, sampling.agent_id)
        if row is None:
            row = _Row(ids, sampling.agent_id)
            self._rows.append(row)
        else:
            given = ids[len(row.prompt_ids) + len(row.ids) :]
            row.extend(given, [0.0] * len(given), False, version)
        row.extend(completion.ids, completion.logprobs, True, version)
        row.turns.append(turn)
        row.requests.append(number)
        row.lengths.append(len(completion.ids))
        row.finish_reason = completion.finish_reason
        self.last_ids = list(completion.ids)

    def rows(self) -> Iterator[RecordedRow]:
        """Yield the rows in the order in which they began."""
        for row in self._rows:
            completion = Completion(row.ids, row.logprobs, row.finish_reason, row.mask, row.versions)
            turns = tuple(row.turns)
            recorded = TrajectoryRow(row.prompt_ids, completion, row.agent_id, turns)
            yield RecordedRow(recorded, tuple(row.requests), tuple(row.lengths))

    def _row_before(self, ids: list[int], agent_id: int) -> _Row | None:
        """Return the newest row of an agent that a prompt continues."""
        own = (row for row in reversed(self._rows) if row.agent_id == agent_id)
        return next((row for row in own if row.begins(ids)), None)
