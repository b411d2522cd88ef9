"""HTML report of an ablation: the tables of report.md, a point per seed, and curves with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from markupsafe import Markup

from titanrl import __version__
from titanrl.ablation import summary
from titanrl.ablation.comparison import Row, Runs, evaluate_expectations, group_rows
from titanrl.ablation.curves import Budget
from titanrl.ablation.execute import Failure
from titanrl.ablation.plan import Plan
from titanrl.ablation.statistics import mean_interval
from titanrl.report.figures import COLOURS, Line, curves
from titanrl.report.html import Page, details, figures, legend, note, table

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

__all__ = ["write_page"]

CURVES = "Means over seeds with Student's 95% interval. The x position by tokens is the mean over seeds."


def write_page(
    plan: Plan, runs: Runs, rows: Sequence[Row], failed: Sequence[Failure], command: str, file: Path
) -> Path:
    """Write the page and return its path.

    Args:
        plan: the ablation.
        runs: its finished runs.
        rows: their comparison.
        failed: runs that did not finish.
        command: the command line.
        file: the page.
    """
    settings, names = plan.settings, [variant.name for variant in plan.variants]
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    page = Page(settings.title or plan.name, f"Ablation. Written by titanrl {__version__}.")
    texts = [settings.claim, f"Source: {settings.source}." if settings.source else "", settings.remark]
    outcomes = evaluate_expectations(settings, rows)
    blocks = [note(text) for text in texts if text]
    if outcomes:
        blocks.append(_table(summary.outcome_table(outcomes, plan.baseline)))
    if blocks:
        page.section("Expectations", *blocks)
    if failed:
        page.section("Failed runs", _table(summary.failure_table(failed)))
    at_steps = [group for group in group_rows(rows) if group[0].budget == "steps"]
    points = [_seed_figure(group, names, colours) for group in at_steps]
    page.section("Results", legend(colours), figures(*points), *_result_blocks(plan, rows))
    kinds: tuple[Budget, ...] = ("steps", "tokens")
    curve_figures = [
        curves(f"{metric} by {kind}", lines, x=kind)
        for kind in kinds
        for metric in settings.all_metrics
        if (lines := _mean_lines(runs, metric, kind, colours))
    ]
    if curve_figures:
        page.section("Curves", note(CURVES), figures(*curve_figures))
    differing, equal = summary.settings_table(plan)
    page.section("Settings", _table(differing), note(equal))
    notes = [summary.describe_values(settings.window), *summary.reading_notes(settings.seeds)]
    page.section("Reading the tables", *map(note, notes))
    page.section("Reproduction", _table(summary.reproduction_table(plan, runs, command)))
    return page.write(file)


def _table(content: summary.Table) -> Markup:
    return table(content.head, content.rows)


def _result_blocks(plan: Plan, rows: Sequence[Row]) -> list[Markup]:
    """Return the result tables; all but those of the deciding metric are folded."""
    blocks: list[Markup] = []
    tables = summary.result_tables(rows, plan.baseline, plan.settings.seeds)
    for group, each in zip(group_rows(rows), tables, strict=True):
        if group[0].metric == plan.settings.metric:
            blocks += [Markup("<h3>{}</h3>").format(each.title), _table(each)]
        else:
            blocks.append(details(each.title, _table(each)))
    return blocks


def _seed_figure(group: Sequence[Row], names: Sequence[str], colours: Mapping[str, str]) -> Figure:
    """Return a figure of the values of all seeds per variant, with the mean and its interval beside them."""
    lines = []
    for row in group:
        position, colour = names.index(row.variant), colours[row.variant]
        for seed, value in row.values.items():
            lines.append(Line(row.variant, colour, [position], [value], detail=f"seed {seed}"))
        if len(row.values) > 1:
            interval, detail = [row.low, row.mean, row.high], "mean and 95% interval"
            x = [position + 0.2] * 3
            lines.append(Line(row.variant, colour, x, interval, has_markers=True, detail=detail))
    plot = curves(summary.group_title(group[0]), lines, x="")
    plot.xaxis.ticker = list(range(len(names)))
    plot.xaxis.major_label_overrides = dict(enumerate(names))
    plot.x_range.start, plot.x_range.end = -0.4, len(names) - 0.4
    return plot


def _mean_lines(runs: Runs, metric: str, budget: Budget, colours: Mapping[str, str]) -> list[Line]:
    """Return per variant the mean over seeds at each step, with its interval.

    A variant needs at least two steps at which all its runs recorded the metric.
    """
    lines = []
    for name, colour in colours.items():
        seeds = [curves for (variant, _), curves in runs.items() if variant == name]
        by_step: dict[float, list[tuple[float, float]]] = {}  # step -> (cost, value) of each seed
        for seed in seeds:
            costs = dict(zip(seed.cost["steps"], seed.cost[budget], strict=True))
            for step, value in seed.points(metric):
                by_step.setdefault(step, []).append((costs[step], value))
        complete = [points for points in by_step.values() if len(points) == len(seeds)]
        if len(complete) < 2:
            continue
        x = [fmean(cost for cost, _ in points) for points in complete]
        intervals = [mean_interval([value for _, value in points]) for points in complete]
        y, low, high = ([each[part] for each in intervals] for part in range(3))
        bands = (low, high) if len(seeds) > 1 else (None, None)
        lines.append(Line(name, colour, x, y, *bands))
    return lines
