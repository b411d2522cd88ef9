"""Report page of one or several runs: results, curves, times, dataflow, samples, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from markupsafe import Markup

from titanrl import __version__
from titanrl.report.dataflow_plot import dataflow_plot
from titanrl.report.figures import COLOURS, curves
from titanrl.report.html import Page, code, details, figures, legend, note, table
from titanrl.report.panels import Panel, other_panels, sections
from titanrl.report.record import RunRecord, flattened, read_runs
from titanrl.report.samples import sample_browser
from titanrl.report.times import stage_times

__all__ = ["write_report"]

DATAFLOW_NOTE = (
    "Columns are components and parts of the loop in execution order; rows are batch keys. A filled dot "
    "marks a writer of a key, a ring a reader."
)


def write_report(paths: Sequence[Path], file: Path) -> Path:
    """Write the page of several runs, overlaid, and return its path.

    Args:
        paths: run folders.
        file: the page.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    runs = read_runs(paths)
    colours = {run.name: COLOURS[i % len(COLOURS)] for i, run in enumerate(runs)}
    names = ", ".join(colours)
    page = Page(names if len(names) < 80 else f"{len(runs)} runs", f"Written by titanrl {__version__}.")
    page.section("Runs", legend(colours), _summary(runs))
    page.section("Alerts", _alerts(runs))
    for title, panels in sections(runs).items():
        if blocks := _curve_blocks(runs, colours, panels):
            page.section(title, *blocks)
    page.section("Time", *stage_times(runs))
    if blocks := _validations(runs):
        page.section("Validation", *blocks)
    page.section("Other metrics", *_others(runs, colours))
    page.section("Dataflow", *_dataflows(runs))
    page.section("Samples", sample_browser(runs))
    page.section("Settings", *_settings(runs))
    if blocks := _sessions(runs):
        page.section("Sessions", *blocks)
    return page.write(file)


def _summary(runs: Sequence[RunRecord]) -> Markup:
    head = ("run", "model", "algorithm", "seed", "steps", "first validation", "last", "minutes", "versions")
    rows = []
    for run in runs:
        table_of = run.table.get
        validations = [text for text in map(_validation_text, run.metrics) if text] or [""]
        seconds = sum(line.get("time/step_seconds") or 0.0 for line in run.metrics)
        versions = [f"{key} {run.versions[key]}" for key in ("titanrl", "torch") if key in run.versions]
        row = [
            run.name,
            table_of("model", {}).get("path"),
            _algorithm_text(run.table),
            table_of("run", {}).get("seed"),
            run.progress,
            validations[0],
            validations[-1],
            seconds / 60,
            ", ".join(versions),
        ]
        rows.append(row)
    return table(head, rows)


def _algorithm_text(table: Mapping[str, Any]) -> str | None:
    """Return the main components of a run's algorithm in execution order."""
    algorithm = table.get("algorithm", {})
    parts = [algorithm.get(kind, {}).get("name") for kind in ("advantage", "loss", "kl", "aggregation")]
    return " + ".join(part for part in parts if part) or None


def _validation_text(line: Mapping[str, float | None]) -> str:
    """Return the validation of a step as text: a score with its interval, or a loss; "" if there is none."""
    if (score := line.get("eval/score")) is not None:
        low, high = line.get("eval/score_low"), line.get("eval/score_high")
        interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
        return f"{score:.3f}{interval}"
    if (loss := line.get("eval/loss")) is not None:
        accuracy = line.get("eval/accuracy")
        return f"loss {loss:.4f}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")
    return ""


def _alerts(runs: Sequence[RunRecord]) -> Markup:
    columns = ("step", "name", "message")
    if len(runs) == 1:
        head, rows = list(columns), [[*map(alert.get, columns)] for alert in runs[0].alerts]
    else:
        head = ["run", *columns]
        rows = [[run.name, *map(alert.get, columns)] for run in runs for alert in run.alerts]
    return table(head, rows) if rows else note("None.")


def _curve_blocks(
    runs: Sequence[RunRecord], colours: Mapping[str, str], panels: Sequence[Panel]
) -> list[Markup]:
    plots = []
    for panel in panels:
        lines = [line for run in runs for line in panel.lines(run, colours[run.name])]
        if lines:
            plots.append(curves(panel.title, lines))
    return [figures(*plots)] if plots else []


def _others(runs: Sequence[RunRecord], colours: Mapping[str, str]) -> list[Markup]:
    """Return the metrics that no section shows: varying ones as figures, constant ones as a table."""
    varying, constant = [], []
    for panel in other_panels(runs):
        (key,) = panel.keys
        series = [run.series(key)[1][0] for run in runs]
        if any(len(set(values)) > 1 for values in series):
            varying.append(panel)
        else:
            constant.append([key, *(values[0] if values else None for values in series)])
    blocks = [note("docs/metrics.md explains each metric.")]
    if varying:
        blocks.append(details(f"{len(varying)} varying metrics", *_curve_blocks(runs, colours, varying)))
    if constant:
        head = ["metric", *(run.name for run in runs)]
        blocks.append(details(f"{len(constant)} constant metrics", table(head, constant)))
    return blocks


def _validations(runs: Sequence[RunRecord]) -> list[Markup]:
    """Return one table per run with its validations, one per row."""
    blocks = []
    for run in runs:
        lines = [line for line in run.metrics if any(key.startswith("eval/") for key in line)]
        keys = list(dict.fromkeys(key for line in lines for key in line if key.startswith("eval/")))
        keys.sort(key=lambda key: not key.startswith("eval/score"))  # Puts the score beside its interval.
        rows = [[line["step"], *(line.get(key) for key in keys)] for line in lines]
        if rows:
            block = table(["step", *(key.removeprefix("eval/").replace("_", " ") for key in keys)], rows)
            blocks.append(details(f"{run.name}: {len(rows)} validations", block) if len(runs) > 1 else block)
    return blocks


def _dataflows(runs: Sequence[RunRecord]) -> list[Markup]:
    """Return the dataflow diagram of each distinct algorithm among the runs."""
    from titanrl.config import load
    from titanrl.errors import ConfigError
    from titanrl.report.folder import RunFolder

    diagrams: dict[Markup, list[str]] = {}
    for run in runs:
        try:
            diagram = dataflow_plot(load(RunFolder(run.path).config).dataflow())
        except ConfigError as error:
            diagram = note(f"The run's file can no longer be read: {error}")
        diagrams.setdefault(diagram, []).append(run.name)
    blocks = [note(DATAFLOW_NOTE)]
    for diagram, names in diagrams.items():
        if len(diagrams) > 1:
            blocks.append(Markup("<h3>{}</h3>").format(", ".join(names)))
        blocks.append(Markup('<div class="scroll">{}</div>').format(diagram))
    return blocks


def _settings(runs: Sequence[RunRecord]) -> list[Markup]:
    """Return a table of the keys that differ between the runs, then the complete files."""
    flat = [flattened(run.table) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    differing = [key for key in keys if len({repr(each.get(key)) for each in flat}) > 1]
    blocks = []
    if len(runs) > 1:
        rows = [[key, *(each.get(key) for each in flat)] for key in differing]
        blocks.append(table(["key", *(run.name for run in runs)], rows) if rows else note("No keys differ."))
    changes = [[run.name, *change] for run in runs for change in run.changes]
    if changes:
        blocks.append(note("Settings that changed when a run was resumed:"))
        blocks.append(table(["run", "after step", "key", "before", "after"], changes))
    return blocks + [details(f"{run.name}: experiment.toml", code(tomli_w.dumps(run.table))) for run in runs]


def _sessions(runs: Sequence[RunRecord]) -> list[Markup]:
    """Return a table of the processes that trained the runs."""
    rows = [
        [
            run.name,
            session.get("first_step"),
            session.get("date"),
            session.get("host"),
            " ".join(map(str, session.get("command", []))),
            session.get("git_commit", "") + (" with changes" if session.get("git_has_changes") else ""),
        ]
        for run in runs
        for session in run.sessions
    ]
    return [table(["run", "after step", "date", "host", "command", "git commit"], rows)] if rows else []
