"""What an ablation's report says, as tables of text and notes, whichever form it is written in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from titanrl.ablation.comparison import Difference, Row, Runs, Verdict, blocks
from titanrl.ablation.execute import Failure
from titanrl.ablation.plan import Plan
from titanrl.ablation.statistics import least_p
from titanrl.config.dump import to_table
from titanrl.registry.values import format_value
from titanrl.report.record import flattened

__all__ = [
    "Table",
    "block_title",
    "failures",
    "how_to_read",
    "identity",
    "results",
    "settings",
    "values_are",
    "verdict_table",
]

MAX_LISTED = 8
"""Most seeds of which a table lists each; results.csv has them all."""
WAYS = {"higher": "higher than", "lower": "lower than", "same": "the same as"}


class Table(NamedTuple):
    """Cells as text; those of a head are one line."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def results(rows: Sequence[Row], baseline: str, seeds: int) -> list[Table]:
    """Returns a table for each metric and budget: each variant's mean, interval, difference, seeds."""
    spread = "each seed" if seeds <= MAX_LISTED else "least, median, greatest"
    head = [
        "variant", "mean", "95% interval", f"less {baseline}", "95% interval", "p", "p (Holm)", spread,
    ]  # fmt: skip
    return [
        Table(block_title(block[0]), head, [_result(row, seeds) for row in block]) for block in blocks(rows)
    ]


def block_title(row: Row) -> str:
    """Returns the metric and the budget of a row."""
    amount = f"{row.limit:.1f}" if row.budget == "seconds" else f"{row.limit:.0f}"
    return f"{row.metric} at {amount} {row.budget}"


def _result(row: Row, seeds: int) -> list[str]:
    if seeds <= MAX_LISTED:
        told = [number(row.values[seed]) if seed in row.values else "–" for seed in range(seeds)]
    else:
        found = list(row.values.values())
        told = [number(each) for each in (min(found), median(found), max(found))]
    difference = ["–"] * 4 if row.difference is None else _difference(row.difference)
    return [row.variant, number(row.mean), span(row.low, row.high), *difference, " ".join(told)]


def _difference(difference: Difference) -> list[str]:
    return [
        f"{difference.mean:+.4g}", span(difference.low, difference.high), number(difference.p),
        number(difference.p_holm),
    ]  # fmt: skip


def verdict_table(found: Sequence[Verdict], baseline: str) -> Table:
    """Returns what was expected and what came of it."""
    rows = []
    for verdict in found:
        expected, difference = verdict.expectation, verdict.difference
        within = f" within {number(expected.margin)}" if expected.margin else ""
        sentence = f"{expected.variant} {WAYS[expected.direction]} {baseline}{within}"
        shown = ["–", "–"] if difference is None else _difference(difference)[:2]
        rows.append([sentence, verdict.metric, *shown, verdict.outcome])
    return Table("", ["expected", "metric", "difference", "95% interval", "outcome"], rows)


def settings(plan: Plan) -> tuple[Table, str]:
    """Returns the keys in which variants differ, and what is to be said of all others."""
    flat = {run.variant: flattened(to_table(run.experiment)) for run in plan.runs if run.seed == 0}
    keys = sorted({key for each in flat.values() for key in each if not key.startswith("run.")})
    differing = [key for key in keys if len({json.dumps(each.get(key)) for each in flat.values()}) > 1]
    names = [variant.name for variant in plan.variants]
    rows = [[key, *(_shown(flat[name].get(key)) for name in names)] for key in differing]
    equal = len(keys) - len(differing)
    seeds = ", ".join(str(seed) for seed in range(plan.settings.seeds))
    note = (
        f"The other {equal} keys are equal in all variants, defaults included; each run's experiment.toml "
        f"has them all. [run] seed is {seeds} in turn, and variants with the same seed see the same prompts."
    )
    return Table("", ["key", *names], rows), note


def _shown(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else format_value(value)


def failures(failed: Sequence[Failure]) -> Table:
    """Returns the runs that did not come to an end, and why."""
    return Table("", ["run", "reason"], [[each.run.folder.path.name, each.reason] for each in failed])


def identity(plan: Plan, runs: Runs, command: str) -> Table:
    """Returns what it takes to do it again: command, versions, time."""
    versions: dict[str, set[str]] = {}
    for run in plan.runs:
        file = run.folder.path / "versions.json"
        for name, version in (json.loads(file.read_text("utf-8")) if file.is_file() else {}).items():
            if name not in ("seed", "cpus"):
                versions.setdefault(name, set()).add(str(version))
    listed = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in sorted(versions.items()))
    seconds = sum(each.total("seconds") for each in runs.values())
    rows = [
        ["command", command], ["base", str(plan.runs[0].base)], ["runs", str(plan.folder)],
        ["finished", f"{len(runs)} of {len(plan.runs)} runs"],
        ["training time", f"{seconds / 60:.1f} minutes in all, {seconds / len(runs):.1f} seconds a run"],
        ["versions", listed],
    ]  # fmt: skip
    return Table("", ["what", ""], rows)


def values_are(window: int) -> str:
    """Returns what one value of a table is."""
    what = f"the mean over the last {window} steps" if window > 1 else "the last recorded one"
    return f"A value is {what} within the budget."


def how_to_read(seeds: int) -> list[str]:
    """Returns the notes without which the numbers would say too much."""
    intervals = (
        "Means have Student's t interval over seeds. Differences are taken seed by seed. Their interval is "
        "the expanded percentile bootstrap, which is not too short for few seeds as the plain one is; still, "
        "with n seeds no bootstrap covers more than 1 - 2 / 2^n."
    )
    tests = (
        f"p is that of the exact sign-flip test: with {seeds} seeds the smallest it can be is "
        f"{least_p(seeds):.3g}, when all seeds agree. A p above 0.05 is no evidence of no difference; "
        "look at the interval. Holm's correction counts the variants of a table."
    )
    outcomes = (
        "As expected, or the opposite: the whole interval of the difference lies on that side of 0, or "
        "within or beyond the margin, at the last budget of steps. Otherwise: undecided."
    )
    return [intervals, tests, outcomes]


def number(value: float) -> str:
    """Returns four digits; what rounding left of a zero is zero."""
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def span(low: float, high: float) -> str:
    """Returns an interval."""
    return f"{number(low)} to {number(high)}"
