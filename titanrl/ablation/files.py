"""Report files of an ablation: results.csv, report.md and report.html."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from titanrl.ablation import summary
from titanrl.ablation.comparison import Measurement, Row, Runs, compare, evaluate_expectations, measure
from titanrl.ablation.curves import BUDGETS, read_curves
from titanrl.ablation.execute import Failure
from titanrl.ablation.page import write_page
from titanrl.ablation.plan import Plan
from titanrl.errors import ConfigError, TrainingError
from titanrl.report.folder import write_atomic

__all__ = ["markdown_table", "read_results", "results_csv", "write_files"]


def write_files(plan: Plan, failed: Sequence[Failure], command: str) -> list[Path]:
    """Write the report of the finished runs to the ablation's folder and return its files.

    Args:
        plan: the ablation.
        failed: runs that did not finish.
        command: the command line.

    Raises:
        TrainingError: no run has finished.
    """
    runs = _read_finished(plan)
    measurements = measure(runs, plan.settings)
    table = compare(measurements, [variant.name for variant in plan.variants])
    texts = {
        "results.csv": results_csv(measurements),
        "report.md": _markdown(plan, runs, table, failed, command),
    }
    for name, text in texts.items():
        write_atomic(plan.folder / name, text)
    page = write_page(plan, runs, table, failed, command, plan.folder / "report.html")
    return [*(plan.folder / name for name in texts), page]


def _read_finished(plan: Plan) -> Runs:
    runs = {
        (run.variant, run.seed): read_curves(run.folder.path, plan.settings.all_metrics)
        for run in plan.runs
        if run.state() == "finished"
    }
    if not runs:
        raise TrainingError(f"no run of {plan.file} has finished, so there is nothing to report.")
    return runs


def results_csv(measurements: Sequence[Measurement]) -> str:
    """Return the measurements as CSV with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Measurement._fields)
    writer.writerows([*each[:4], f"{each.limit:g}", f"{each.value:.6g}"] for each in measurements)
    return text.getvalue()


def read_results(path: Path) -> list[Measurement]:
    """Return the measurements of a results.csv.

    Raises:
        ConfigError: the file has another header.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != Measurement._fields:
        raise ConfigError(f"{path} must begin with {','.join(Measurement._fields)}; it is not a results.csv.")
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
    if outcomes := evaluate_expectations(settings, table):
        parts += ["## Expectations", markdown_table(summary.outcome_table(outcomes, plan.baseline))]
    if failed:
        parts += ["## Failed runs", markdown_table(summary.failure_table(failed))]
    parts.append("## Results")
    for each in summary.result_tables(table, plan.baseline, settings.seeds):
        parts += [f"### {each.title}", markdown_table(each)]
    parts += ["## Reading the tables", summary.describe_values(settings.window)]
    parts += summary.reading_notes(settings.seeds)
    differing, equal = summary.settings_table(plan)
    parts += ["## Settings", markdown_table(differing), equal]
    parts += ["## Reproduction", markdown_table(summary.reproduction_table(plan, runs, command))]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def markdown_table(table: summary.Table) -> str:
    """Return a table as Markdown."""
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
