"""Alerts on the metrics of a run, each raised once while its condition lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from titanrl.config.alerts import Alerts

__all__ = ["Alert", "AlertMonitor", "active_alerts"]

Trace: TypeAlias = Mapping[str, Sequence[tuple[int, float]]]
"""Metric name -> (step, value) of every step that reported it, in order."""


class Alert(NamedTuple):
    """A condition that holds, with its cause and remedy."""

    name: str
    """Key of [alerts]."""
    value: float
    """Value that was compared with the limit."""
    limit: float
    message: str
    """Observation and remedy."""


ABOVE = {
    "kl": (
        "kl/value",
        "the policy is far from the reference policy; raise the KL coefficient or lower the learning rate",
    ),
    "zero_std_groups": (
        "advantage/frac_zero_std",
        "most groups have equal rewards and give no learning signal; choose other prompts or a finer reward",
    ),
    "clip_fraction": (
        "loss/clip_fraction",
        "most tokens are at the clip bounds; lower the learning rate or the optimizer steps per batch",
    ),
    "failed_rewards": (
        "reward/failed_fraction",
        "a reward fails on many responses; see its first error on the console, and reward/<label>_failures",
    ),
    "logprob_diff": (
        "sample/logprob_diff",
        "sampler and trainer log-probs differ; compare their precision, or add an [[algorithm.correction]]",
    ),
}
"""Alert -> the metric that its limit bounds from above, and the meaning of the alert."""

SKIPPED, ZERO_GRADIENT, NONFINITE = "skipped_steps", "zero_gradient", "nonfinite_loss"
REMEDIES = {
    SKIPPED: (
        "no step was made in {count}, because the gradient was not finite: lower [optimizer] lr, and look "
        "for the first step whose loss or log-probs are not finite in metrics.jsonl and samples.jsonl."
    ),
    ZERO_GRADIENT: (
        "no step was made in {count}, because the gradient was exactly zero: look whether all rewards of a "
        "group are equal, all rows are masked or clipped, or the loss does not depend on the model."
    ),
    NONFINITE: (
        "the loss was not finite in {count}: check the loss, the rewards and labels that it reads, and lower "
        "[optimizer] lr."
    ),
}
"""Alert on consecutive steps -> its meaning and remedy."""
ALWAYS_STOPS = frozenset({SKIPPED})
"""Alerts that stop every run in which they are on: further steps could change nothing."""
PER_MODEL = tuple(
    f"{stage}/{quantity}" for stage in ("update", "critic") for quantity in ("skipped", "nonfinite_gradients")
)
LOSSES = ("loss/nonfinite", "critic/nonfinite", "eval/nonfinite")

MONITORED = (
    *(metric for metric, _ in ABOVE.values()),
    *PER_MODEL,
    *LOSSES,
    "loss/entropy",
    "sample/response_tokens_mean",
    "reward/mean",
    "reward/std",
    "eval/score",
)


class AlertMonitor:
    """Monitor that raises alerts from the metrics of every step, in order.

    A resumed run replays its earlier steps first.

    Args:
        limits: the [alerts] table.
    """

    def __init__(self, limits: Alerts) -> None:
        self._limits = limits
        self._trace: dict[str, list[tuple[int, float]]] = {name: [] for name in MONITORED}
        self._active: set[str] = set()

    def update(self, step: int, metrics: Mapping[str, float | None]) -> list[Alert]:
        """Add the metrics of a step and return the alerts whose condition did not hold before it.

        Args:
            step: number of the step.
            metrics: ``stage/quantity`` -> number; missing and non-finite values are skipped.
        """
        for name, points in self._trace.items():
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                points.append((step, value))
        active = active_alerts(self._trace, self._limits)
        raised = [alert for alert in active if alert.name not in self._active]
        self._active = {alert.name for alert in active}
        return raised


def active_alerts(trace: Trace, limits: Alerts) -> list[Alert]:
    """Return every alert whose condition holds after the last step of ``trace``."""
    alerts = [_consecutive(trace, limits, name) for name in REMEDIES]
    alerts += [_above(trace, limits, name) for name in ABOVE]
    alerts += [_entropy(trace, limits), _length_growth(trace, limits), _reward_hacking(trace, limits)]
    return [alert for alert in alerts if alert is not None]


def _consecutive(trace: Trace, limits: Alerts, name: str) -> Alert | None:
    """Count the last steps of each model, or loss, in which the condition holds; take the most."""
    if name == NONFINITE:
        holds = [[value > 0 for _, value in trace[metric]] for metric in LOSSES]
    else:
        holds = [
            [skipped == 1 and (bad > 0) == (name == SKIPPED) for skipped, bad in _aligned(trace, stage)]
            for stage in ("update", "critic")
        ]
    count = max(_trailing(each) for each in holds)
    limit = getattr(limits, name)
    if not limit or count < limit:
        return None
    steps = f"{count} steps in a row" if count > 1 else "the last step"
    return Alert(name, float(count), float(limit), REMEDIES[name].format(count=steps))


def _aligned(trace: Trace, stage: str) -> list[tuple[float, float]]:
    """Return (share of skipped optimizer steps, share with a gradient that is not finite) of each step.

    Steps recorded before the second metric existed have none, and do not count.
    """
    skipped, nonfinite = (dict(trace[f"{stage}/{name}"]) for name in ("skipped", "nonfinite_gradients"))
    return [(skipped[step], bad) for step, bad in nonfinite.items() if step in skipped]


def _trailing(holds: Sequence[bool]) -> int:
    """Return the number of true values at the end."""
    return next((index for index, each in enumerate(reversed(holds)) if not each), len(holds))


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
        f"loss/entropy is {mean:.3g}, below {limit:g}: responses hardly vary; add an "
        "[algorithm.entropy] bonus, raise clip_high, or lower the learning rate."
    )
    return Alert("entropy", mean, limit, text)


def _length_growth(trace: Trace, limits: Alerts) -> Alert | None:
    points, window, limit = trace["sample/response_tokens_mean"], limits.window, limits.length_growth
    before, now = _mean(points[:-window], window), _mean(points, window)
    if not before or now is None or now / before <= limit:
        return None
    text = (
        f"sample/response_tokens_mean went from {before:.3g} to {now:.3g} within {window} steps, more than "
        f"{limit:g} times: inspect samples.jsonl, and penalise length with the reward 'overlong'."
    )
    return Alert("length_growth", now / before, limit, text)


def _reward_hacking(trace: Trace, limits: Alerts) -> Alert | None:
    """Compare the training rewards at the best held-out score, or the first ones, with the latest ones."""
    scores, limit, window = trace["eval/score"], limits.reward_hacking, limits.window
    if not scores:
        return None
    (best_step, best), (last_step, last) = max(scores, key=lambda point: point[1]), scores[-1]
    rewards = _until(trace["reward/mean"], last_step)
    earlier = _until(rewards, best_step)[-window:]
    earlier = earlier if len(earlier) == window else rewards[:window]
    recent = rewards[-window:]
    standard_deviations = [value for _, value in _until(trace["reward/std"], last_step)]
    if len(earlier) < window or recent[0][0] <= earlier[-1][0] or not any(standard_deviations):
        return None
    rise = fmean(value for _, value in recent) - fmean(value for _, value in earlier)
    relative_rise = rise / fmean(standard_deviations)
    if relative_rise <= limit:
        return None
    text = (
        f"reward/mean has risen by {rise:.3g}, {relative_rise:.2g} standard deviations, since the best "
        f"eval/score, {best:.3g} in step {best_step}, which is {last:.3g} in step {last_step}: inspect "
        "samples.jsonl; the policy exploits the reward or has memorised the training prompts."
    )
    return Alert("reward_hacking", relative_rise, limit, text)


def _mean(points: Sequence[tuple[int, float]], window: int) -> float | None:
    """Return the mean of the last ``window`` values; None if there are fewer."""
    return fmean(value for _, value in points[-window:]) if len(points) >= window else None


def _until(points: Sequence[tuple[int, float]], step: int) -> Sequence[tuple[int, float]]:
    return [point for point in points if point[0] <= step]
