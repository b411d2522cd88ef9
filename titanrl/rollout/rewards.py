"""Rewards -> one finite score a row, whatever a reward function does: raise, hang, return NaN or too few."""

from __future__ import annotations

import ctypes
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from titanrl.engine import collectives
from titanrl.errors import ConfigError
from titanrl.ops.scores import fill_missing_scores
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.engine import Engine
    from titanrl.protocols import RewardFunction

__all__ = ["Failures", "RewardTerm", "Scored", "read_by", "score_on_leader", "score_rewards"]


class Failures(NamedTuple):
    """How often rewards could not judge, and why."""

    counts: dict[str, float]
    """Metric name -> scores that are a reward's ``failure``."""
    reasons: dict[str, str]
    """Label of a reward that failed -> why it did the first time."""


class Scored(NamedTuple):
    """What rewards say of a batch."""

    scores: dict[str | tuple[str, ...], torch.Tensor]
    """Batch key of each reward -> [N] float32, finite."""
    reasons: dict[str, dict[int, str]]
    """Label of each reward -> row on which it failed -> why."""

    @property
    def failures(self) -> Failures:
        counts = {f"reward/{label}_failures": float(len(rows)) for label, rows in self.reasons.items()}
        return Failures(counts, {label: rows[min(rows)] for label, rows in self.reasons.items() if rows})


class RewardTerm(Protocol):
    """One entry of `[[reward]]`."""

    @property
    def component(self) -> RewardFunction: ...
    @property
    def weight(self) -> float: ...
    @property
    def label(self) -> str: ...
    @property
    def failure(self) -> float: ...
    @property
    def timeout_seconds(self) -> float | None: ...


def score_on_leader(engine: Engine, batch: TensorDict, rewards: Sequence[RewardTerm]) -> Scored:
    """Returns what ``score_rewards`` returns; of ranks with the same rows the first asks. A collective."""
    return collectives.broadcast_from_leader(engine.row_groups, lambda: score_rewards(batch, rewards))


def score_rewards(batch: TensorDict, rewards: Sequence[RewardTerm]) -> Scored:
    """Returns ``{("rewards", label): [N], "reward": [N]}``, float32 and finite, what failed where and why.

    ``reward = sum_k weight_k r_k``; the others are unweighted. A function that raises (BaseException too),
    returns something else than N numbers, or takes longer than its timeout_seconds for the batch is asked
    row by row, with the same deadline for each: a row on which it fails scores ``failure`` and the reason is
    kept, the others keep their scores. Rewards that keep their own deadlines say which rows failed through a
    method ``scores``: there the reason, or None, stands in the place of a number. A reward that reads another
    one is called after it. KeyboardInterrupt of the user passes through.

    Raises:
        ConfigError: a reward reads another one that is not there, or two have one label.
    """
    labels = [term.label for term in rewards]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"[[reward]] label {label!r} must be unique; give one of them another label.")
    seen, reasons = batch.copy(), {}
    runner = _Runner()
    try:
        for term in _in_reading_order(rewards):
            values, reasons[term.label] = _guarded(term, seen, runner)
            seen.set(("rewards", term.label), values)
    finally:
        runner.stop()
    scores: dict[str | tuple[str, ...], torch.Tensor] = {
        ("rewards", label): seen["rewards", label] for label in labels
    }
    scores["reward"] = sum(
        (term.weight * scores["rewards", term.label] for term in rewards), torch.zeros(batch.shape[0])
    )
    return Scored(scores, reasons)


def _in_reading_order(rewards: Sequence[RewardTerm]) -> list[RewardTerm]:
    ordered: list[RewardTerm] = []
    waiting = list(rewards)
    while waiting:
        done = {term.label for term in ordered}
        ready = [term for term in waiting if read_by(term) <= done]
        if not ready:
            missing = sorted(read_by(waiting[0]) - done)
            raise ConfigError(
                f"[[reward]] {waiting[0].label!r} reads the reward {missing[0]!r}, which is not there before "
                f"it; add it, or correct the name. Rewards: {', '.join(term.label for term in rewards)}."
            )
        ordered += ready
        waiting = [term for term in waiting if term not in ready]
    return ordered


def read_by(term: RewardTerm) -> set[str]:
    """Returns the labels of the other rewards that a reward reads."""
    keys = getattr(term.component, "in_keys", ())
    return {key[1] for key in keys if isinstance(key, tuple) and key[0] == "rewards"}


class _Failure(NamedTuple):
    """What stands in the place of a function's result."""

    reason: str


def _guarded(term: RewardTerm, batch: TensorDict, runner: _Runner) -> tuple[torch.Tensor, dict[int, str]]:
    """Returns scores [N] float32, finite, and why the function failed, by row."""
    own = getattr(term.component, "scores", None)
    # One of its own isolates its rows itself; what it raises is no row's fault and must be seen.
    found = _whole_or_by_rows(term, batch, runner) if own is None else own(batch)
    values = fill_missing_scores(found, math.nan)
    is_right = values.isfinite()
    reasons = {row: _why_none(found[row]) for row, right in enumerate(is_right.tolist()) if not right}
    return torch.where(is_right, values, term.failure), reasons


def _why_none(score: float | str | None) -> str:
    if isinstance(score, str):
        return score
    return "gave no score" if score is None else f"returned {score}"


def _whole_or_by_rows(term: RewardTerm, batch: TensorDict, runner: _Runner) -> list[float | str]:
    rows = batch.shape[0]
    found = _scores(runner.call(term.component, batch, term.timeout_seconds), rows)
    if isinstance(found, list):
        return found
    if rows <= 1:
        return [found] * rows
    return [score for row in range(rows) for score in _whole_or_by_rows(term, batch[row : row + 1], runner)]


def _scores(result: Any, rows: int) -> list[float | str] | str:
    """The function's result as numbers, NaN kept; why it is none if it is something else."""
    if isinstance(result, _Failure):
        return result.reason
    if isinstance(result, torch.Tensor) and result.shape == (rows,) and not result.is_complex():
        return result.detach().to("cpu", torch.float32).tolist()
    is_tensor = isinstance(result, torch.Tensor)
    got = f"{result.dtype} of shape {list(result.shape)}" if is_tensor else type(result).__name__
    return f"returned {got}, not one number a row"


class _Runner:
    """A thread that calls reward functions, so that a late one can be left and Ctrl-C stays the user's."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._work, self._results), daemon=True, name="titanrl-reward"
        )
        self._thread.start()

    def call(self, function: Callable[[Any], Any], batch: TensorDict, seconds: float | None) -> Any:
        """Returns ``function(batch)``; a ``_Failure`` if it raises or is late."""
        self._work.put((function, batch))
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            self._leave()
            self._start()
            return _Failure(f"took longer than its timeout_seconds, {seconds:g}")

    def _leave(self) -> None:
        # Python code notices this at its next instruction; C code and sleeps only when they return.
        self._work.put(None)
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    def stop(self) -> None:
        self._work.put(None)


def _serve(work: queue.SimpleQueue[Any], results: queue.SimpleQueue[Any]) -> None:
    with torch.no_grad():
        while True:
            task = work.get()
            if task is None:
                return
            function, batch = task
            try:
                results.put(function(batch))
            # SystemExit and KeyboardInterrupt that reward code raises are its own failures.
            except BaseException as error:
                results.put(_Failure(error_text(error)))
