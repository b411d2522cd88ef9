"""Rewards -> finite scores for every row, even where a reward function raises, hangs or returns NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from titanrl.algorithm.combine_rewards import combine_rewards
from titanrl.engine import collectives
from titanrl.errors import ConfigError
from titanrl.registry import declared
from titanrl.rollout.reward_calls import RewardResults, RewardTerm, call_reward
from titanrl.rollout.reward_threads import RewardThreads
from titanrl.runtime.stop import abandonable

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.engine import Engine

__all__ = ["Failures", "RewardTerm", "Scored", "read_by", "score_on_leader", "score_rewards"]


class Failures(NamedTuple):
    """How often rewards failed, and why."""

    counts: dict[str, float]
    """Metric name -> rows whose score is a reward's ``failure_score``."""
    reasons: dict[str, str]
    """Label of each reward that failed -> its first error."""


class Scored(NamedTuple):
    """The scores of a batch."""

    scores: dict[str | tuple[str, ...], torch.Tensor]
    """Batch key -> [N] or [N, L] float32; finite, but NaN in unscored rows."""
    reasons: dict[str, dict[int, str]]
    """Label of each reward -> row on which it failed -> error."""

    @property
    def failures(self) -> Failures:
        counts = {f"reward/{label}_failures": float(len(rows)) for label, rows in self.reasons.items()}
        return Failures(counts, {label: rows[min(rows)] for label, rows in self.reasons.items() if rows})


def score_on_leader(
    engine: Engine, batch: TensorDict, rewards: Sequence[RewardTerm], *, unscored: bool = False
) -> Scored:
    """Return ``score_rewards``, computed by the first of the ranks that hold the same rows; a collective.

    A request to stop may abandon it, so call it by ``collectives.abandon_together``.
    """
    # Ranks that share rows wait for the first of them, which must not leave them alone.
    with nullcontext() if engine.row_groups else abandonable():
        return collectives.broadcast_from_leader(
            engine.row_groups, lambda: score_rewards(batch, rewards, unscored=unscored)
        )


def score_rewards(batch: TensorDict, rewards: Sequence[RewardTerm], *, unscored: bool = False) -> Scored:
    """Return the batch keys that the rewards write, and the failures with their reasons.

    ``reward = sum_k weight_k r_k`` [N], or another combination (see ``combine_rewards``).
    ``("rewards", label)`` [N] holds each r_k without its weight.
    A reward function returns [N], unless its class declares something else:

    - ``per_token = True``: [N, L], one number per label position, aligned with loss_mask. r_k is its sum over
      the response tokens; ``("token_rewards", label)`` holds the numbers times the weight, 0 where masked.
    - ``outputs = ("a", "b")``: a mapping of these names to [N]. r_k is the first one; each is also
      ``("rewards", "label.a")``.
    - ``out_keys = ("key",)``: registered batch keys, in the same mapping. Without ``outputs``, r_k is named
      ``reward`` there.

    Numbers may be a tensor, an array, a list or a tuple of any real type, [N] or [N, 1]; None and NaN are
    missing. An ``async`` function is awaited.

    A function that raises (BaseException too), returns other shapes or names, or exceeds timeout_seconds on
    the batch is called again row by row, ``concurrency`` rows at a time, with the same timeout. After three
    timeouts in a row, and after five times timeout_seconds in all, the other rows of the batch are given up.
    A row on which it fails scores ``failure_score`` (per token: on its last response token) and keeps the
    reason; the other rows keep theirs. A reward with a method ``scores`` isolates its rows itself: it returns
    a number per row, or the reason or None. A reward that reads another one is called after it. The user's
    KeyboardInterrupt passes through.

    Args:
        batch: N rows as stage `sample` leaves them.
        rewards: the [[reward]] tables.
        unscored: whether rows on which a reward with on_failure = "unscored" fails get NaN.

    Raises:
        ConfigError: a reward reads one that does not exist, labels are not unique, or declarations conflict.
    """
    labels = [term.label for term in rewards]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"[[reward]] label {label!r} must be unique; give one of them another label.")
    results_of = {term.label: RewardResults.of(term.component, term.label) for term in rewards}
    seen, reasons = batch.copy(), {}
    extra: dict[str | tuple[str, ...], torch.Tensor] = {}
    threads = RewardThreads()
    try:
        for term in _in_reading_order(rewards):
            label, results = term.label, results_of[term.label]
            failure = math.nan if unscored and term.on_failure == "unscored" else term.failure_score
            result, reasons[label] = call_reward(term, results, seen, threads, failure)
            value = result[results.value]
            if results.per_token:
                extra["token_rewards", label] = term.weight * value
                value = value.sum(-1, dtype=torch.float64).float()
                value[list(reasons[label])] = failure
            seen.set(("rewards", label), value)
            own: dict[str | tuple[str, ...], torch.Tensor] = {
                **{("rewards", f"{label}.{name}"): result[name] for name in results.outputs},
                **{key: result[key] for key in results.out_keys},
            }
            seen.update(own)
            extra |= own
    finally:
        threads.stop()
    scores: dict[str | tuple[str, ...], torch.Tensor] = {
        ("rewards", label): seen["rewards", label] for label in labels
    }
    values = {label: seen["rewards", label] for label in labels}
    scores["reward"] = combine_rewards(values, rewards) if rewards else torch.zeros(len(batch))
    return Scored(scores | extra, reasons)


def read_by(term: RewardTerm, rewards: Sequence[RewardTerm]) -> set[str]:
    """Return the labels of the rewards whose values, or outputs, a reward reads."""
    names = _names_read(term)
    return {other.label for other in rewards if _names_written(other) & names}


def _names_read(term: RewardTerm) -> set[str]:
    keys = declared(term.component, "in_keys")
    return {key[1] for key in keys if isinstance(key, tuple) and key[0] == "rewards"}


def _names_written(term: RewardTerm) -> set[str]:
    outputs = RewardResults.of(term.component, term.label).outputs
    return {term.label, *(f"{term.label}.{name}" for name in outputs)}


def _in_reading_order(rewards: Sequence[RewardTerm]) -> list[RewardTerm]:
    ordered: list[RewardTerm] = []
    waiting, written = list(rewards), set[str]()
    while waiting:
        ready = [term for term in waiting if _names_read(term) <= written]
        if not ready:
            missing = sorted(_names_read(waiting[0]) - written)
            raise ConfigError(
                f"[[reward]] {waiting[0].label!r} reads the reward {missing[0]!r}, which no reward before it "
                f"computes; add it, or correct the name. "
                f"Rewards: {', '.join(term.label for term in rewards)}."
            )
        ordered += ready
        written.update(*(_names_written(term) for term in ready))
        waiting = [term for term in waiting if term not in ready]
    return ordered
