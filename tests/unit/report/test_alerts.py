"""Alerts: each is raised by one trace of metrics and not by another, once, also after a resume."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import pytest

from titanrl.config.alerts import Alerts
from titanrl.errors import ConfigError
from titanrl.registry.decode import decode
from titanrl.report.alerts import AlertMonitor

LIMITS = Alerts(window=2)


def raised(steps: Iterable[Mapping[str, float | None]], limits: Alerts = LIMITS) -> list[tuple[int, str]]:
    """Return (step, alert) of a run whose steps 1, 2, ... have these metrics."""
    monitor = AlertMonitor(limits)
    return [(step, alert.name) for step, each in enumerate(steps, 1) for alert in monitor.update(step, each)]


def trace(metric: str, *values: float | None) -> list[dict[str, float | None]]:
    return [{metric: value} for value in values]


BOUNDS = {
    "kl": ("kl/value", 5.0, 1),
    "entropy": ("loss/entropy", 0.02, -1),
    "zero_std_groups": ("advantage/frac_zero_std", 0.9, 1),
    "clip_fraction": ("loss/clip_fraction", 0.5, 1),
    "failed_rewards": ("reward/failed_fraction", 0.5, 1),
    "logprob_diff": ("sample/logprob_diff", 0.1, 1),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_mean_over_the_window_beyond_its_limit_raises_the_alert_once(name):
    metric, limit, side = BOUNDS[name]
    # One spike that the window's mean takes back, then two steps whose mean is beyond the limit.
    step = side * 0.01 * limit
    values = [limit, limit + step, limit - 2 * step, *repeat(limit + 3 * step, 3)]
    assert raised(trace(metric, *values)) == [(2, name), (4, name)]
    assert raised(trace(metric, *repeat(limit, 6))) == []


@pytest.mark.parametrize("name", BOUNDS)
def test_alert_that_is_off_is_never_raised(name):
    metric, _, side = BOUNDS[name]
    off = math.inf if side > 0 else 0.0
    steps = trace(metric, *repeat(1e6 if side > 0 else 0.0, 6))
    assert raised(steps) == [(2, name)]
    assert raised(steps, Alerts(window=2, **{name: off})) == []


def test_alert_is_raised_again_after_its_condition_has_ended():
    assert raised(trace("kl/value", 9, 9, 9, 0, 0, 9, 9, 9)) == [(2, "kl"), (7, "kl")]


def test_alerts_ignore_absent_and_non_finite_metrics():
    assert raised(trace("kl/value", 9.0, None, math.nan, 9.0)) == [(4, "kl")]
    assert raised([{"kl/value": 9.0}, {}, {}]) == []


def steps_of(skipped: float, nonfinite: float, number: int, part: str = "update") -> list[dict[str, float]]:
    return [{f"{part}/skipped": skipped, f"{part}/nonfinite_gradients": nonfinite}] * number


@pytest.mark.parametrize("part", ["update", "critic"])
def test_consecutive_skipped_steps_raise_an_alert_by_their_reason(part):
    good = steps_of(0, 0, 1, part)
    bad, zero = steps_of(1, 1, 5, part), steps_of(1, 0, 5, part)
    assert raised([*bad[:4], *good, *bad[:4]]) == []
    assert raised([*good, *bad]) == [(6, "skipped_steps")]
    assert raised([*good, *zero]) == [(6, "zero_gradient")]
    assert raised([*bad[:3], *zero[:3]]) == []
    assert raised([*bad, *zero], Alerts(skipped_steps=0, zero_gradient=0)) == []
    assert raised(steps_of(0.5, 0.5, 9, part)) == [], "some optimizer steps of each batch were made"


@pytest.mark.parametrize("metric", ["loss/nonfinite", "critic/nonfinite", "eval/nonfinite"])
def test_loss_that_is_not_finite_raises_an_alert(metric):
    assert raised(trace(metric, 0, 0, 0.5, 1.0, 0)) == [(3, "nonfinite_loss")]
    assert raised(trace(metric, 1, 1, 1), Alerts(nonfinite_loss=0)) == []


def test_length_explosion_needs_doubling_between_windows():
    name, metric = "length_growth", "sample/response_tokens_mean"
    assert raised(trace(metric, 10, 10, 20, 20)) == []
    assert raised(trace(metric, 10, 10, 20, 21)) == [(4, name)]
    assert raised(trace(metric, *(10 * 1.3**step for step in range(12)))) == []  # 1.69 a window
    assert raised(trace(metric, 1, 1, 9, 9), Alerts(window=2, length_growth=math.inf)) == []


def run_steps(
    rewards: Sequence[float], scores: Mapping[int, float], std: float = 1.0
) -> list[dict[str, float]]:
    """Return the steps of a run with these training rewards, and these held-out scores by step."""
    return [
        {"reward/mean": reward, "reward/std": std} | ({"eval/score": scores[step]} if step in scores else {})
        for step, reward in enumerate(rewards, 1)
    ]


RISING = (0.0, 0.0, 0.3, 0.6, 0.9, 1.2)


def test_reward_hacking_is_a_rising_reward_with_a_flat_held_out_score():
    name = "reward_hacking"
    # Means of two: 0 until step 2, 0.45 at step 4, 1.05 at step 6; in standard deviations of 1 and of 3.
    assert raised(run_steps(RISING, {2: 0.3, 4: 0.3, 6: 0.3})) == [(6, name)]
    assert raised(run_steps(RISING, {2: 0.3, 4: 0.3, 6: 0.3}, std=3.0)) == []
    assert raised(run_steps(RISING, {2: 0.3, 4: 0.2, 6: 0.31})) == []  # beaten in the end
    assert raised(run_steps(RISING, {2: 0.3})) == []  # not evaluated since
    assert raised(run_steps([1.0] * 6, {2: 0.3, 6: 0.1})) == []  # worse, but nothing is gained by it
    assert raised(run_steps(RISING, {2: 0.3, 6: 0.3}), Alerts(window=2, reward_hacking=math.inf)) == []


def test_reward_hacking_is_measured_from_the_best_held_out_score():
    assert raised(run_steps((0.0, 0.0, 2.0, 2.0, 2.1, 2.1), {1: 0.1, 4: 0.4, 6: 0.3})) == []
    monitor = AlertMonitor(LIMITS)
    monitor.update(0, {"eval/score": 0.4})
    steps = run_steps(RISING, {6: 0.4})
    assert [[alert.name for alert in monitor.update(step, each)] for step, each in enumerate(steps, 1)][
        -1
    ] == ["reward_hacking"]


def test_resumed_run_raises_the_alerts_of_the_uninterrupted_run():
    steps = [
        {**each, "kl/value": kl}
        for each, kl in zip(run_steps(RISING, {2: 0.3, 6: 0.3}), (0, 9, 9, 9, 0, 0), strict=True)
    ]
    whole = AlertMonitor(LIMITS)
    expected = [whole.update(step, each) for step, each in enumerate(steps)]
    for stop in range(len(steps)):
        resumed = AlertMonitor(LIMITS)
        assert [resumed.update(step, each) for step, each in enumerate(steps)][stop:] == expected[stop:]


def test_alert_reports_the_value_and_its_limit():
    monitor = AlertMonitor(Alerts(window=1, kl=2.0))
    (alert,) = monitor.update(7, {"kl/value": 3.25})
    assert (alert.value, alert.limit) == (3.25, 2.0)
    assert alert.message.startswith("kl/value is 3.25, above 2: ")


def test_run_cannot_be_stopped_by_an_alert_that_is_off_or_unknown():
    with pytest.raises(ConfigError, match="stop must name alerts that are on, got 'kl'"):
        decode(Alerts, {"kl": math.inf, "stop": ["kl"]})
    with pytest.raises(ConfigError, match="stop"):
        decode(Alerts, {"stop": ["kll"]})
