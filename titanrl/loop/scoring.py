"""Rewards -> one finite score a row, whatever a reward function does: raise, hang, return NaN or too few."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from titanrl.errors import ConfigError
from titanrl.loop import exchange

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.engine import Engine
    from titanrl.protocols import RewardFunction

__all__ = ["RewardTerm", "score_once", "score_rewards"]

Scored: TypeAlias = tuple[dict[str | tuple[str, ...], torch.Tensor], dict[str, float]]
"""Batch keys of rewards and their scores [N], and failures by metric name."""


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
    def deadline_seconds(self) -> float | None: ...


def score_once(engine: Engine, batch: TensorDict, rewards: Sequence[RewardTerm]) -> Scored:
    """Returns what ``score_rewards`` returns; of ranks with the same rows the first asks. A collective."""
    return exchange.from_first(engine.row_groups, lambda: score_rewards(batch, rewards))


def score_rewards(batch: TensorDict, rewards: Sequence[RewardTerm]) -> Scored:
    """Returns ``{("rewards", label): [N], "reward": [N]}``, float32 and finite, and failures by metric name.

    ``reward = sum_k weight_k r_k``; the others are unweighted. A function that raises (BaseException too),
    returns something else than N numbers, or takes longer than its deadline_seconds for the batch is asked
    row by row, with the same deadline for each: a row on which it fails scores ``failure`` and is counted,
    the others keep their scores. Rewards that keep their own deadlines say which rows failed through a
    method ``scores``. A reward that reads another one is called after it. KeyboardInterrupt of the user
    passes through.

    Raises:
        ConfigError: a reward reads another one that is not there, or two have one label.
    """
    labels = [term.label for term in rewards]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"[[reward]] label {label!r} must be unique; give one of them another label.")
    seen, failures = batch.copy(), {}
    runner = _Runner()
    try:
        for term in _in_reading_order(rewards):
            values, failed = _guarded(term, seen, runner)
            failures[f"reward/{term.label}_failures"] = float(failed)
            seen.set(("rewards", term.label), values)
    finally:
        runner.stop()
    scores: dict[str | tuple[str, ...], torch.Tensor] = {
        ("rewards", label): seen["rewards", label] for label in labels
    }
    scores["reward"] = sum(
        (term.weight * scores["rewards", term.label] for term in rewards), torch.zeros(batch.shape[0])
    )
    return scores, failures


def _in_reading_order(rewards: Sequence[RewardTerm]) -> list[RewardTerm]:
    ordered: list[RewardTerm] = []
    waiting = list(rewards)
    while waiting:
        done = {term.label for term in ordered}
        ready = [term for term in waiting if _read_by(term) <= done]
        if not ready:
            missing = sorted(_read_by(waiting[0]) - done)
            raise ConfigError(
                f"[[reward]] {waiting[0].label!r} reads the reward {missing[0]!r}, which is not there before "
                f"it; add it, or correct the name. Rewards: {', '.join(term.label for term in rewards)}."
            )
        ordered += ready
        waiting = [term for term in waiting if term not in ready]
    return ordered


def _read_by(term: RewardTerm) -> set[str]:
    keys = getattr(term.component, "in_keys", ())
    return {key[1] for key in keys if isinstance(key, tuple) and key[0] == "rewards"}


def _guarded(term: RewardTerm, batch: TensorDict, runner: _Runner) -> tuple[torch.Tensor, int]:
    """Returns scores [N] float32, finite, and on how many rows the function failed."""
    own = getattr(term.component, "scores", None)
    if own is not None:
        # Isolates its rows itself; what it raises is no row's fault and must be seen.
        found = torch.tensor([float("nan") if score is None else score for score in own(batch)])
    else:
        found = _whole_or_by_rows(term, batch, runner)
    is_right = found.isfinite()
    return torch.where(is_right, found, term.failure).float(), int((~is_right).sum())


def _whole_or_by_rows(term: RewardTerm, batch: TensorDict, runner: _Runner) -> torch.Tensor:
    rows = batch.shape[0]
    found = _scores(runner.call(term.component, batch, term.deadline_seconds), rows)
    if found is not None or rows == 0:
        return torch.zeros(0) if found is None else found
    if rows == 1:
        return torch.full((1,), torch.nan)
    return torch.cat([_whole_or_by_rows(term, batch[row : row + 1], runner) for row in range(rows)])


def _scores(result: Any, rows: int) -> torch.Tensor | None:
    """The function's result as [rows] float32 on the CPU, NaN kept; None if it is something else."""
    if not isinstance(result, torch.Tensor) or result.shape != (rows,) or result.is_complex():
        return None
    return result.detach().to("cpu", torch.float32)


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
        """Returns ``function(batch)``; None if it raises or is late."""
        self._work.put((function, batch))
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            self._leave()
            self._start()
            return None

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
            except (
                BaseException
            ):  # SystemExit and KeyboardInterrupt raised by reward code are its own failures
                results.put(None)
