"""The files of an ablation's report: results.csv, report.md, report.html; and reading the first again."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from titanrl.ablation import summary
from titanrl.ablation.comparison import Measurement, Row, Runs, compare, measure, verdicts
from titanrl.ablation.curves import BUDGETS, read_curves
from titanrl.ablation.execute import Failure
from titanrl.ablation.page import write_page
from titanrl.ablation.plan import Plan
from titanrl.errors import ConfigError, TrainingError
from titanrl.report.folder import write_atomic

__all__ = ["markdown_table", "read_results", "results_csv", "write_files"]


def write_files(plan: Plan, failed: Sequence[Failure], command: str) -> list[Path]:
    """Writes the report of what is finished into the ablation's folder and returns its files.

    Args:
        failed: runs that did not come to their end. command: what was typed.

    Raises:
        TrainingError: no run has come to its end.
    """
    runs = _finished(plan)
    measured = measure(runs, plan.settings)
    table = compare(measured, [variant.name for variant in plan.variants])
    texts = {"results.csv": results_csv(measured), "report.md": _markdown(plan, runs, table, failed, command)}
    for name, text in texts.items():
        write_atomic(plan.folder / name, text)
    page = write_page(plan, runs, table, failed, command, plan.folder / "report.html")
    return [*(plan.folder / name for name in texts), page]


def _finished(plan: Plan) -> Runs:
    runs = {
        (run.variant, run.seed): read_curves(run.folder.path, plan.settings.shown)
        for run in plan.runs
        if run.state() == "finished"
    }
    if not runs:
        raise TrainingError(f"no run of {plan.file} has come to its end, so there is nothing to report.")
    return runs


def results_csv(measured: Sequence[Measurement]) -> str:
    """Returns a line for each measurement, under a head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Measurement._fields)
    writer.writerows([*each[:4], f"{each.limit:g}", f"{each.value:.6g}"] for each in measured)
    return text.getvalue()


def read_results(path: Path) -> list[Measurement]:
    """Returns the measurements of a results.csv.

    Raises:
        ConfigError: it is none.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != Measurement._fields:
        raise ConfigError(f"{path} must begin with {','.join(Measurement._fields)}; it is no results.csv.")
    return [
        Measurement(variant, int(seed), metric, budget, float(limit), float(value))
        for variant, seed, metric, budget, limit, value in lines[1:]
        if budget in BUDGETS
    ]


def _markdown(plan: Plan, runs: Runs, table: Sequence[Row], failed: Sequence[Failure], command: str) -> str:
    settings = plan.settings
    parts = [f"# {settings.title or plan.name}", settings.claim]
    if settings.source:
        parts.append(f"Source: {settings.source}.")
    if found := verdicts(settings, table):
        parts += ["## Expected and found", markdown_table(summary.verdict_table(found, plan.baseline))]
    if failed:
        parts += ["## Runs that failed", markdown_table(summary.failures(failed))]
    parts.append("## Results")
    for each in summary.results(table, plan.baseline, settings.seeds):
        parts += [f"### {each.title}", markdown_table(each)]
    parts += ["## How to read this", summary.values_are(settings.window)]
    parts += summary.how_to_read(settings.seeds)
    differing, equal = summary.settings(plan)
    parts += ["## What differs, and what was held equal", markdown_table(differing), equal]
    parts += ["## How it was made", markdown_table(summary.identity(plan, runs, command))]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def markdown_table(table: summary.Table) -> str:
    """Returns a table of text as Markdown has it."""
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
