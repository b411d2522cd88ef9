"""Numbers of runs -> the table of an ablation: means, intervals, paired differences, p, outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple

from titanrl.ablation.curves import BUDGETS, Budget, Curves
from titanrl.ablation.settings import Budgets, Expectation, Settings
from titanrl.ablation.statistics import bootstrap_interval, holm, mean_interval, sign_flip_p

__all__ = ["Difference", "Measurement", "Row", "Runs", "Verdict", "blocks", "compare", "measure", "verdicts"]

Runs = Mapping[tuple[str, int], Curves]
"""Variant and seed -> what the run recorded; runs that failed are not there."""
Outcome = Literal["as expected", "the opposite", "undecided", "not measured"]


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
    """A variant less the baseline, seed by seed."""

    pairs: int
    """Seeds that both have."""
    mean: float
    low: float
    high: float
    """Ends of the 95% bootstrap interval; infinite with fewer than two pairs."""
    p: float
    """Of the sign-flip test."""
    p_holm: float
    """Corrected for the number of variants compared with the baseline."""


@dataclass(frozen=True, slots=True)
class Row:
    """One variant by one metric at one budget."""

    variant: str
    metric: str
    budget: Budget
    limit: float
    values: Mapping[int, float]
    """Seed -> value."""
    mean: float
    low: float
    high: float
    """Ends of the 95% t interval over seeds; infinite with one seed."""
    difference: Difference | None
    """None: it is the baseline, or no seed is in both."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an expectation, at the last budget of steps."""

    expectation: Expectation
    metric: str
    difference: Difference | None
    outcome: Outcome


def measure(runs: Runs, settings: Settings) -> list[Measurement]:
    """Returns every metric of every run at every budget, where the run has it.

    A kind of budget without values has one: the most that all the runs reached.
    """
    found = []
    for metric in settings.shown:
        for budget, limit in _limits(runs, settings.budgets):
            for (variant, seed), curves in runs.items():
                value = curves.at(metric, budget, limit, settings.window)
                if value is not None:
                    found.append(Measurement(variant, seed, metric, budget, limit, value))
    return found


def _limits(runs: Runs, budgets: Budgets) -> list[tuple[Budget, float]]:
    found: list[tuple[Budget, float]] = []
    for kind in BUDGETS:
        given = getattr(budgets, kind) or (min(each.total(kind) for each in runs.values()),)
        found += [(kind, float(limit)) for limit in given]
    return found


def compare(measured: Sequence[Measurement], variants: Sequence[str]) -> list[Row]:
    """Returns the whole table: metrics and budgets in the order measured, within them the variants.

    Args:
        variants: their names, the baseline first.
    """
    found: dict[tuple[str, Budget, float], dict[str, dict[int, float]]] = {}
    for each in sorted(measured, key=lambda each: each.seed):
        block = found.setdefault((each.metric, each.budget, each.limit), {})
        block.setdefault(each.variant, {})[each.seed] = each.value
    order = dict.fromkeys((each.metric, each.budget, each.limit) for each in measured)
    table: list[Row] = []
    for metric, budget, limit in order:
        block = found[metric, budget, limit]
        rows = []
        for variant in (name for name in variants if name in block):
            values, base = block[variant], block.get(variants[0], {})
            pairs = [values[seed] - base[seed] for seed in values if seed in base]
            difference = None if variant == variants[0] else _difference(pairs)
            middle = mean_interval(list(values.values()))
            rows.append(Row(variant, metric, budget, limit, values, *middle, difference))
        table += _corrected(rows)
    return table


def blocks(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each metric at each budget, which are compared with one another."""
    found: dict[tuple[str, Budget, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row.metric, row.budget, row.limit), []).append(row)
    return list(found.values())


def verdicts(settings: Settings, table: Sequence[Row]) -> list[Verdict]:
    """Returns what came of each expectation: its interval must lie on the side, or within the margin."""
    found = []
    for expectation in settings.expect:
        metric = expectation.metric or settings.metric
        at_steps = [
            row for row in table
            if (row.metric, row.budget, row.variant) == (metric, "steps", expectation.variant)
        ]  # fmt: skip
        difference = at_steps[-1].difference if at_steps else None
        found.append(Verdict(expectation, metric, difference, _outcome(expectation, difference)))
    return found


def _difference(pairs: Sequence[float]) -> Difference | None:
    if not pairs:
        return None
    low, high = bootstrap_interval(pairs) if len(pairs) > 1 else (-math.inf, math.inf)
    p = sign_flip_p(pairs)
    return Difference(len(pairs), fmean(pairs), low, high, p, p)


def _corrected(block: Sequence[Row]) -> list[Row]:
    """Returns the rows of one metric and budget with p corrected for their number."""
    corrected = iter(holm([row.difference.p for row in block if row.difference is not None]))
    return [
        row
        if row.difference is None
        else replace(row, difference=replace(row.difference, p_holm=next(corrected)))
        for row in block
    ]


def _outcome(expectation: Expectation, difference: Difference | None) -> Outcome:
    if difference is None:
        return "not measured"
    low, high = difference.low, difference.high
    if expectation.direction == "same":
        margin = expectation.margin
        if -margin <= low and high <= margin:
            return "as expected"
        return "the opposite" if low > margin or high < -margin else "undecided"
    if expectation.direction == "lower":
        low, high = -high, -low
    if low > 0:
        return "as expected"
    return "the opposite" if high < 0 else "undecided"
