"""Tables and notes of an ablation's report, independent of the output format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from titanrl.ablation.comparison import Difference, Outcome, Row, Runs, group_rows
from titanrl.ablation.execute import Failure
from titanrl.ablation.plan import Plan
from titanrl.ablation.statistics import min_p
from titanrl.config.dump import to_table
from titanrl.registry.values import format_value
from titanrl.report.record import flattened

__all__ = [
    "Table",
    "describe_values",
    "failure_table",
    "group_title",
    "outcome_table",
    "reading_notes",
    "reproduction_table",
    "result_tables",
    "settings_table",
]

MAX_LISTED = 8
"""Maximum number of seeds that a table lists individually; results.csv has all of them."""
DIRECTIONS = {"higher": "higher than", "lower": "lower than", "same": "the same as"}


class Table(NamedTuple):
    """A table with text cells."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def result_tables(rows: Sequence[Row], baseline: str, seeds: int) -> list[Table]:
    """Return one table per metric and budget: mean, interval, difference and seeds of each variant.

    Args:
        rows: the comparison.
        baseline: name of the baseline.
        seeds: number of seeds.
    """
    values = "values by seed" if seeds <= MAX_LISTED else "min, median, max"
    difference = f"difference from {baseline}"
    head = ["variant", "mean", "95% interval", difference, "95% interval", "p", "p (Holm)", values]
    return [
        Table(group_title(group[0]), head, [_cells(row, seeds) for row in group])
        for group in group_rows(rows)
    ]


def group_title(row: Row) -> str:
    """Return the metric and the budget of a row as a title."""
    amount = f"{row.limit:.1f}" if row.budget == "seconds" else f"{row.limit:.0f}"
    return f"{row.metric} at {amount} {row.budget}"


def _cells(row: Row, seeds: int) -> list[str]:
    if seeds <= MAX_LISTED:
        values = [_number(row.values[seed]) if seed in row.values else "–" for seed in range(seeds)]
    else:
        numbers = list(row.values.values())
        values = [_number(each) for each in (min(numbers), median(numbers), max(numbers))]
    difference = ["–"] * 4 if row.difference is None else _difference_cells(row.difference)
    return [row.variant, _number(row.mean), _interval(row.low, row.high), *difference, " ".join(values)]


def _difference_cells(difference: Difference) -> list[str]:
    interval = _interval(difference.low, difference.high)
    return [f"{difference.mean:+.4g}", interval, _number(difference.p), _number(difference.p_holm)]


def outcome_table(outcomes: Sequence[Outcome], baseline: str) -> Table:
    """Return a table of the expectations and their results."""
    rows = []
    for outcome in outcomes:
        expected, difference = outcome.expectation, outcome.difference
        margin = f" within {_number(expected.margin)}" if expected.margin else ""
        sentence = f"{expected.variant} {DIRECTIONS[expected.direction]} {baseline}{margin}"
        cells = ["–", "–"] if difference is None else _difference_cells(difference)[:2]
        rows.append([sentence, outcome.metric, *cells, outcome.result])
    return Table("", ["expectation", "metric", "difference", "95% interval", "outcome"], rows)


def settings_table(plan: Plan) -> tuple[Table, str]:
    """Return a table of the keys in which variants differ, and a note on all other keys."""
    flat = {run.variant: flattened(to_table(run.experiment)) for run in plan.runs if run.seed == 0}
    keys = sorted({key for each in flat.values() for key in each if not key.startswith("run.")})
    differing = [key for key in keys if len({json.dumps(each.get(key)) for each in flat.values()}) > 1]
    names = [variant.name for variant in plan.variants]
    rows = [[key, *(_cell(flat[name].get(key)) for name in names)] for key in differing]
    num_equal = len(keys) - len(differing)
    seeds = ", ".join(str(seed) for seed in range(plan.settings.seeds))
    note = (
        f"The other {num_equal} keys, including defaults, are equal in all variants; each run's "
        f"experiment.toml lists them. [run] seed takes the values {seeds}; variants with the same seed "
        "use the same prompts."
    )
    return Table("", ["key", *names], rows), note


def _cell(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else format_value(value)


def failure_table(failed: Sequence[Failure]) -> Table:
    """Return a table of the failed runs and their reasons."""
    return Table("", ["run", "reason"], [[each.run.folder.path.name, each.reason] for each in failed])


def reproduction_table(plan: Plan, runs: Runs, command: str) -> Table:
    """Return a table of what a reproduction needs: command, files, versions, time."""
    versions: dict[str, set[str]] = {}
    for run in plan.runs:
        file = run.folder.path / "versions.json"
        for name, version in (json.loads(file.read_text("utf-8")) if file.is_file() else {}).items():
            if name not in ("seed", "cpus"):
                versions.setdefault(name, set()).add(str(version))
    listed = ", ".join(f"{name} {' and '.join(sorted(each))}" for name, each in sorted(versions.items()))
    seconds = sum(each.total("seconds") for each in runs.values())
    rows = [
        ["command", command],
        ["base", str(plan.runs[0].base)],
        ["runs", str(plan.folder)],
        ["finished", f"{len(runs)} of {len(plan.runs)} runs"],
        ["training time", f"{seconds / 60:.1f} minutes in total, {seconds / len(runs):.1f} seconds per run"],
        ["versions", listed],
    ]
    return Table("", ["item", "value"], rows)


def describe_values(window: int) -> str:
    """Return a sentence that defines the values of the tables."""
    value = f"the mean over the last {window} steps" if window > 1 else "the last recorded one"
    return f"Each value is {value} within the budget."


def reading_notes(seeds: int) -> list[str]:
    """Return notes on the intervals, tests and outcomes of the tables."""
    intervals = (
        "Means have Student's t interval over seeds. Differences are paired by seed. Their interval is the "
        "expanded percentile bootstrap, because the plain percentile interval is too short for few seeds. "
        "With n seeds, no bootstrap interval covers more than 1 - 2 / 2^n."
    )
    tests = (
        f"p is the p-value of the exact sign-flip test. With {seeds} seeds, its minimum is "
        f"{min_p(seeds):.3g}, which is reached if all seeds agree. A p above 0.05 is no "
        "evidence for equality; look at the interval. Holm's correction accounts for the number of variants "
        "of a table."
    )
    outcomes = (
        "The outcome of an expected direction is decided if Holm's p is at most 0.05 at the last budget of "
        "steps, which takes six seeds or more; that of an expected equality if the whole interval lies "
        "within, or beyond, the margin. Otherwise it is 'undecided'. With fewer than five seeds it is 'too "
        "few seeds'."
    )
    return [intervals, tests, outcomes]


def _number(value: float) -> str:
    """Return a number with four significant digits; rounding errors of zero are shown as 0."""
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def _interval(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"
