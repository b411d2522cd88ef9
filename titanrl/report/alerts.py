"""What a run's metrics so far say of its health: alerts, each raised once while its condition lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from titanrl.config.alerts import Alerts

__all__ = ["Alert", "AlertMonitor", "standing"]

Trace: TypeAlias = Mapping[str, Sequence[tuple[int, float]]]
"""Metric name -> (step, value) of every step that reported it, in order."""


class Alert(NamedTuple):
    """A condition that holds."""

    name: str
    """Key of [alerts]."""
    value: float
    """What was compared with the limit."""
    limit: float
    message: str
    """What was seen, and what to do."""


ABOVE = {
    "kl": (
        "kl/value",
        "the policy has left its reference; raise the KL coefficient or lower the learning rate",
    ),
    "zero_std_groups": (
        "advantage/frac_zero_std",
        "most groups have equal rewards and teach nothing; choose other prompts or a finer reward",
    ),
    "clip_fraction": (
        "loss/clip_fraction",
        "most tokens are at the clip bounds; lower the learning rate, or make fewer optimizer steps a batch",
    ),
    "logprob_diff": (
        "sample/logprob_diff",
        "sampler and trainer disagree; compare their precision, or add an [[algorithm.correction]]",
    ),
}
"""Alert -> the metric that its limit bounds from above, and what that means."""

WATCHED = (
    *(metric for metric, _ in ABOVE.values()),
    "loss/entropy",
    "sample/response_tokens_mean",
    "reward/mean",
    "reward/std",
    "eval/score",
)


class AlertMonitor:
    """Sees the metrics of every step of a run, in order; a resumed run shows it the earlier ones again.

    Args:
        limits: the [alerts] table.
    """

    def __init__(self, limits: Alerts) -> None:
        self._limits = limits
        self._trace: dict[str, list[tuple[int, float]]] = {name: [] for name in WATCHED}
        self._standing: set[str] = set()

    def see(self, step: int, metrics: Mapping[str, float | None]) -> list[Alert]:
        """Returns the alerts whose condition holds now and did not before this step.

        Args:
            metrics: ``stage/quantity`` -> number; what is missing or not finite leaves no trace.
        """
        for name, points in self._trace.items():
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                points.append((step, value))
        now = standing(self._trace, self._limits)
        raised = [alert for alert in now if alert.name not in self._standing]
        self._standing = {alert.name for alert in now}
        return raised


def standing(trace: Trace, limits: Alerts) -> list[Alert]:
    """Returns every alert whose condition holds after the last step of ``trace``."""
    found = [_above(trace, limits, name) for name in ABOVE]
    found += [_entropy(trace, limits), _length(trace, limits), _hacking(trace, limits)]
    return [alert for alert in found if alert is not None]


def _above(trace: Trace, limits: Alerts, name: str) -> Alert | None:
    metric, meaning = ABOVE[name]
    mean, limit = _mean(trace[metric], limits.window), getattr(limits, name)
    if mean is None or mean <= limit:
        return None
    return Alert(name, mean, limit, f"{metric} is {mean:.3g}, above {limit:g}: {meaning}.")


def _entropy(trace: Trace, limits: Alerts) -> Alert | None:
    mean, limit = _mean(trace["loss/entropy"], limits.window), limits.entropy
    if mean is None or mean >= limit:
        return None
    text = (
        f"loss/entropy is {mean:.3g}, below {limit:g}: answers hardly vary any more; add an "
        "[algorithm.entropy] bonus, raise clip_high, or lower the learning rate."
    )
    return Alert("entropy", mean, limit, text)


def _length(trace: Trace, limits: Alerts) -> Alert | None:
    points, window, limit = trace["sample/response_tokens_mean"], limits.window, limits.length_growth
    before, now = _mean(points[:-window], window), _mean(points, window)
    if not before or now is None or now / before <= limit:
        return None
    text = (
        f"sample/response_tokens_mean went from {before:.3g} to {now:.3g} within {window} steps, more than "
        f"{limit:g} times: look at samples.jsonl, and penalise length with the reward 'overlong'."
    )
    return Alert("length_growth", now / before, limit, text)


def _hacking(trace: Trace, limits: Alerts) -> Alert | None:
    """Compares the rewards up to the best held-out score, or the first ones, with those up to the last."""
    scores, limit, window = trace["eval/score"], limits.reward_hacking, limits.window
    if not scores:
        return None
    (best_step, best), (last_step, last) = max(scores, key=lambda point: point[1]), scores[-1]
    rewards = _until(trace["reward/mean"], last_step)
    past = _until(rewards, best_step)[-window:]
    past = past if len(past) == window else rewards[:window]
    recent = rewards[-window:]
    spreads = [value for _, value in _until(trace["reward/std"], last_step)]
    if len(past) < window or recent[0][0] <= past[-1][0] or not any(spreads):
        return None
    rise = fmean(value for _, value in recent) - fmean(value for _, value in past)
    deviations = rise / fmean(spreads)
    if deviations <= limit:
        return None
    text = (
        f"reward/mean has risen by {rise:.3g}, {deviations:.2g} deviations, since the best eval/score, "
        f"{best:.3g} in step {best_step}, which is {last:.3g} in step {last_step}: look at samples.jsonl; "
        "the reward is exploited, or the training prompts are learned by heart."
    )
    return Alert("reward_hacking", deviations, limit, text)


def _mean(points: Sequence[tuple[int, float]], window: int) -> float | None:
    """Returns the mean of the last ``window`` values; None if there are fewer."""
    return fmean(value for _, value in points[-window:]) if len(points) >= window else None


def _until(points: Sequence[tuple[int, float]], step: int) -> Sequence[tuple[int, float]]:
    return [point for point in points if point[0] <= step]
