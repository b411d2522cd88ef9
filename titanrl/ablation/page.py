"""The report of an ablation as one page: report.md's tables, every seed as a point, curves with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from markupsafe import Markup

from titanrl import __version__
from titanrl.ablation import summary
from titanrl.ablation.comparison import Row, Runs, blocks, verdicts
from titanrl.ablation.curves import Budget
from titanrl.ablation.execute import Failure
from titanrl.ablation.plan import Plan
from titanrl.ablation.statistics import mean_interval
from titanrl.report.figures import COLOURS, Line, curves
from titanrl.report.html import Page, details, figures, legend, note, table

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

__all__ = ["write_page"]

CURVES = "Means over seeds, with Student's 95% interval. By tokens: at the mean of what the seeds had spent."


def write_page(
    plan: Plan, runs: Runs, rows: Sequence[Row], failed: Sequence[Failure], command: str, to: Path
) -> Path:
    """Writes the page and returns its path."""
    settings, names = plan.settings, [variant.name for variant in plan.variants]
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    page = Page(settings.title or plan.name, f"An ablation. Written by titanrl {__version__}.")
    said = [settings.claim, f"Source: {settings.source}." if settings.source else "", settings.remark]
    expected = verdicts(settings, rows)
    head = [note(text) for text in said if text]
    if expected:
        head.append(_table(summary.verdict_table(expected, plan.baseline)))
    if head:
        page.section("Expected and found", *head)
    if failed:
        page.section("Runs that failed", _table(summary.failures(failed)))
    at_steps = [block for block in blocks(rows) if block[0].budget == "steps"]
    points = [_points(block, names, colours) for block in at_steps]
    page.section("Results", legend(colours), figures(*points), *_results(plan, rows))
    kinds: tuple[Budget, ...] = ("steps", "tokens")
    drawn = [
        curves(f"{metric} by {kind}", lines, x=kind)
        for kind in kinds
        for metric in settings.shown
        if (lines := _lines(runs, metric, kind, colours))
    ]
    if drawn:
        page.section("Curves", note(CURVES), figures(*drawn))
    differing, equal = summary.settings(plan)
    page.section("What differs, and what was held equal", _table(differing), note(equal))
    read = [summary.values_are(settings.window), *summary.how_to_read(settings.seeds)]
    page.section("How to read this", *map(note, read))
    page.section("How it was made", _table(summary.identity(plan, runs, command)))
    return page.write(to)


def _table(found: summary.Table) -> Markup:
    return table(found.head, found.rows)


def _results(plan: Plan, rows: Sequence[Row]) -> list[Markup]:
    """Returns the tables, folded but for the metric that decides."""
    found: list[Markup] = []
    for block, each in zip(
        blocks(rows), summary.results(rows, plan.baseline, plan.settings.seeds), strict=True
    ):
        if block[0].metric == plan.settings.metric:
            found += [Markup("<h3>{}</h3>").format(each.title), _table(each)]
        else:
            found.append(details(each.title, _table(each)))
    return found


def _points(block: Sequence[Row], names: Sequence[str], colours: Mapping[str, str]) -> Figure:
    """Returns each seed's value by variant, and beside them the mean with its interval."""
    lines = []
    for row in block:
        place, colour = names.index(row.variant), colours[row.variant]
        for seed, value in row.values.items():
            lines.append(Line(row.variant, colour, [place], [value], what=f"seed {seed}"))
        if len(row.values) > 1:
            interval, what = [row.low, row.mean, row.high], "mean and 95% interval"
            lines.append(Line(row.variant, colour, [place + 0.2] * 3, interval, marked=True, what=what))
    plot = curves(summary.block_title(block[0]), lines, x="")
    plot.xaxis.ticker = list(range(len(names)))
    plot.xaxis.major_label_overrides = dict(enumerate(names))
    plot.x_range.start, plot.x_range.end = -0.4, len(names) - 0.4
    return plot


def _lines(runs: Runs, metric: str, budget: Budget, colours: Mapping[str, str]) -> list[Line]:
    """Returns for each variant the mean over its seeds with the interval, step by step.

    A variant whose metric was recorded fewer than twice by all its runs has none.
    """
    lines = []
    for name, colour in colours.items():
        seeds = [curves for (variant, _), curves in runs.items() if variant == name]
        found: dict[float, list[tuple[float, float]]] = {}  # step -> what each seed had spent, and its value
        for seed in seeds:
            spent = dict(zip(seed.spent["steps"], seed.spent[budget], strict=True))
            for step, value in seed.points(metric):
                found.setdefault(step, []).append((spent[step], value))
        whole = [points for points in found.values() if len(points) == len(seeds)]
        if len(whole) < 2:
            continue
        x = [fmean(at for at, _ in points) for points in whole]
        middles = [mean_interval([value for _, value in points]) for points in whole]
        y, low, high = ([each[part] for each in middles] for part in range(3))
        bands = (low, high) if len(seeds) > 1 else (None, None)
        lines.append(Line(name, colour, x, y, *bands))
    return lines
