"""Comparison of an ablation's runs: means, intervals, paired differences, p-values, outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple

from titanrl.ablation.curves import BUDGETS, Budget, Curves
from titanrl.ablation.settings import Budgets, Expectation, Settings
from titanrl.ablation.statistics import bootstrap_interval, holm, mean_interval, sign_flip_p

__all__ = [
    "Difference",
    "Measurement",
    "Outcome",
    "Result",
    "Row",
    "Runs",
    "compare",
    "evaluate_expectations",
    "group_rows",
    "measure",
]

Runs = Mapping[tuple[str, int], Curves]
"""(variant, seed) -> curves of the run; failed runs are absent."""
Result = Literal["as expected", "the opposite", "undecided", "too few seeds", "not measured"]


MIN_PAIRS = 5
"""Seeds below which no expectation is decided: intervals and p-values of fewer say nothing."""
ALPHA = 0.05
"""Significance level of the corrected p."""


class Measurement(NamedTuple):
    """One metric of one run at one budget: a line of results.csv."""

    variant: str
    seed: int
    metric: str
    budget: Budget
    limit: float
    value: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired difference of a variant from the baseline, over equal seeds."""

    pairs: int
    """Number of seeds that both have."""
    mean: float
    low: float
    high: float
    """Bounds of the 95% bootstrap interval; infinite with fewer than two pairs."""
    p: float
    """p-value of the sign-flip test."""
    p_holm: float
    """p-value corrected for the number of variants compared with the baseline."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one variant at one budget, over all seeds."""

    variant: str
    metric: str
    budget: Budget
    limit: float
    values: Mapping[int, float]
    """Seed -> value."""
    mean: float
    low: float
    high: float
    """Bounds of the 95% t interval over seeds; infinite with one seed."""
    difference: Difference | None
    """None: the variant is the baseline, or the two share no seed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An expectation and its result at the last budget of steps."""

    expectation: Expectation
    metric: str
    difference: Difference | None
    result: Result


def measure(runs: Runs, settings: Settings) -> list[Measurement]:
    """Return every metric of every run at every budget at which the run has it.

    A kind of budget without values gets one value: the maximum that all runs reached.
    """
    measurements = []
    for metric in settings.all_metrics:
        for budget, limit in _limits(runs, settings.budgets):
            for (variant, seed), curves in runs.items():
                value = curves.at(metric, budget, limit, settings.window)
                if value is not None:
                    measurements.append(Measurement(variant, seed, metric, budget, limit, value))
    return measurements


def _limits(runs: Runs, budgets: Budgets) -> list[tuple[Budget, float]]:
    limits: list[tuple[Budget, float]] = []
    for kind in BUDGETS:
        values = getattr(budgets, kind) or (min(each.total(kind) for each in runs.values()),)
        limits += [(kind, float(limit)) for limit in values]
    return limits


def compare(measurements: Sequence[Measurement], variants: Sequence[str]) -> list[Row]:
    """Return the rows of all metrics and budgets, in the order of the measurements, then of the variants.

    Args:
        measurements: as ``measure`` returns them.
        variants: names of the variants, the baseline first.
    """
    by_group: dict[tuple[str, Budget, float], dict[str, dict[int, float]]] = {}
    for each in sorted(measurements, key=lambda each: each.seed):
        group = by_group.setdefault((each.metric, each.budget, each.limit), {})
        group.setdefault(each.variant, {})[each.seed] = each.value
    order = dict.fromkeys((each.metric, each.budget, each.limit) for each in measurements)
    table: list[Row] = []
    for metric, budget, limit in order:
        group = by_group[metric, budget, limit]
        rows = []
        for variant in (name for name in variants if name in group):
            values, baseline = group[variant], group.get(variants[0], {})
            differences = [values[seed] - baseline[seed] for seed in values if seed in baseline]
            difference = None if variant == variants[0] else _difference(differences)
            interval = mean_interval(list(values.values()))
            rows.append(Row(variant, metric, budget, limit, values, *interval, difference))
        table += _with_holm(rows)
    return table


def group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows grouped by metric and budget."""
    groups: dict[tuple[str, Budget, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.metric, row.budget, row.limit), []).append(row)
    return list(groups.values())


def evaluate_expectations(settings: Settings, table: Sequence[Row]) -> list[Outcome]:
    """Return the outcome of each expectation.

    A direction is decided by the corrected p, a margin by the interval; below ``MIN_PAIRS`` seeds neither is.
    """
    outcomes = []
    for expectation in settings.expect:
        metric = expectation.metric or settings.metric
        key = (metric, "steps", expectation.variant)
        rows = [row for row in table if (row.metric, row.budget, row.variant) == key]
        difference = rows[-1].difference if rows else None
        outcomes.append(Outcome(expectation, metric, difference, _result(expectation, difference)))
    return outcomes


def _difference(differences: Sequence[float]) -> Difference | None:
    if not differences:
        return None
    low, high = bootstrap_interval(differences) if len(differences) > 1 else (-math.inf, math.inf)
    p = sign_flip_p(differences)
    return Difference(len(differences), fmean(differences), low, high, p, p)


def _with_holm(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one metric and budget with p-values corrected for the number of comparisons."""
    corrected = iter(holm([row.difference.p for row in rows if row.difference is not None]))
    return [
        row
        if row.difference is None
        else replace(row, difference=replace(row.difference, p_holm=next(corrected)))
        for row in rows
    ]


def _result(expectation: Expectation, difference: Difference | None) -> Result:
    if difference is None:
        return "not measured"
    if difference.pairs < MIN_PAIRS:
        return "too few seeds"
    low, high = difference.low, difference.high
    if expectation.direction == "same":
        margin = expectation.margin
        if -margin <= low and high <= margin:
            return "as expected"
        return "the opposite" if low > margin or high < -margin else "undecided"
    if difference.p_holm > ALPHA:
        return "undecided"
    is_higher = difference.mean > 0
    return "as expected" if is_higher == (expectation.direction == "higher") else "the opposite"
