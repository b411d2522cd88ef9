"""One or several runs as one page: results, curves, times, evaluations, dataflow, samples, settings."""

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
from titanrl.report.panels import Panel, groups, other_panels
from titanrl.report.record import RunRecord, flattened, read_runs
from titanrl.report.samples import sample_browser
from titanrl.report.times import stage_times

__all__ = ["write_report"]

FLOW = (
    "A column each for the components and the parts of the loop, in the order they act. A full dot writes a "
    "key of the batch, a ring reads it."
)


def write_report(paths: Sequence[Path], to: Path) -> Path:
    """Writes the page of some run folders, overlaid, and returns its path.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    runs = read_runs(paths)
    colours = {run.name: COLOURS[i % len(COLOURS)] for i, run in enumerate(runs)}
    names = ", ".join(colours)
    page = Page(names if len(names) < 80 else f"{len(runs)} runs", f"Written by titanrl {__version__}.")
    page.section("Runs", legend(colours), _summary(runs))
    page.section("Alerts", _alerts(runs))
    for title, panels in groups(runs).items():
        if blocks := _panels(runs, colours, panels):
            page.section(title, *blocks)
    page.section("Time", *stage_times(runs))
    if blocks := _evaluations(runs):
        page.section("Evaluation", *blocks)
    page.section("Other metrics", *_others(runs, colours))
    page.section("Dataflow", *_dataflows(runs))
    page.section("Samples", sample_browser(runs))
    page.section("Settings", *_settings(runs))
    return page.write(to)


def _summary(runs: Sequence[RunRecord]) -> Markup:
    head = ("run", "model", "algorithm", "seed", "steps", "held out, before", "after", "minutes", "versions")
    rows = []
    for run in runs:
        table_of = run.table.get
        judged = [text for text in map(verdict, run.metrics) if text] or [""]
        seconds = sum(line.get("time/step_seconds") or 0.0 for line in run.metrics)
        known = [f"{key} {run.versions[key]}" for key in ("titanrl", "torch") if key in run.versions]
        rows.append([
            run.name, table_of("model", {}).get("path"), algorithm_of(run.table),
            table_of("run", {}).get("seed"), run.progress, judged[0], judged[-1],
            seconds / 60, ", ".join(known),
        ])  # fmt: skip
    return table(head, rows)


def algorithm_of(table: Mapping[str, Any]) -> str | None:
    """Returns the components that make a run's algorithm, in the order they act."""
    algorithm = table.get("algorithm", {})
    parts = [algorithm.get(kind, {}).get("name") for kind in ("advantage", "loss", "kl", "aggregation")]
    return " + ".join(part for part in parts if part) or None


def verdict(line: Mapping[str, float | None]) -> str:
    """Returns what a step's validation found, a score with its interval or a loss; "" if it had none."""
    if (score := line.get("eval/score")) is not None:
        low, high = line.get("eval/score_low"), line.get("eval/score_high")
        interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
        return f"{score:.3f}{interval}"
    if (loss := line.get("eval/loss")) is not None:
        accuracy = line.get("eval/accuracy")
        return f"loss {loss:.4f}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")
    return ""


def _alerts(runs: Sequence[RunRecord]) -> Markup:
    parts = ("step", "name", "message")
    several = len(runs) > 1
    rows = [[*[run.name][:several], *map(alert.get, parts)] for run in runs for alert in run.alerts]
    return table([*["run"][:several], *parts], rows) if rows else note("None.")


def _panels(runs: Sequence[RunRecord], colours: Mapping[str, str], panels: Sequence[Panel]) -> list[Markup]:
    plots = []
    for panel in panels:
        lines = [line for run in runs for line in panel.lines(run, colours[run.name])]
        if lines:
            plots.append(curves(panel.title, lines))
    return [figures(*plots)] if plots else []


def _others(runs: Sequence[RunRecord], colours: Mapping[str, str]) -> list[Markup]:
    """Returns the metrics that have no place above: those that move as figures, the others as a table."""
    panels, still = [], []
    for panel in other_panels(runs):
        (key,) = panel.keys
        found = [run.series(key)[1][0] for run in runs]
        if any(len(set(values)) > 1 for values in found):
            panels.append(panel)
        else:
            still.append([key, *(values[0] if values else None for values in found)])
    blocks = [note("What each one is stands in docs/metrics.md.")]
    if panels:
        blocks.append(details(f"{len(panels)} that move", *_panels(runs, colours, panels)))
    if still:
        head = ["metric", *(run.name for run in runs)]
        blocks.append(details(f"{len(still)} that stay the same", table(head, still)))
    return blocks


def _evaluations(runs: Sequence[RunRecord]) -> list[Markup]:
    """Returns a table a run: its validations, one a row."""
    blocks = []
    for run in runs:
        lines = [line for line in run.metrics if any(key.startswith("eval/") for key in line)]
        keys = list(dict.fromkeys(key for line in lines for key in line if key.startswith("eval/")))
        keys.sort(key=lambda key: not key.startswith("eval/score"))  # The score beside its interval.
        rows = [[line["step"], *(line.get(key) for key in keys)] for line in lines]
        if rows:
            shown = table(["step", *(key.removeprefix("eval/").replace("_", " ") for key in keys)], rows)
            blocks.append(details(f"{run.name}: {len(rows)} validations", shown) if len(runs) > 1 else shown)
    return blocks


def _dataflows(runs: Sequence[RunRecord]) -> list[Markup]:
    """Returns the picture of each different algorithm among the runs."""
    from titanrl.config import load
    from titanrl.errors import ConfigError
    from titanrl.report.folder import RunFolder

    pictures: dict[Markup, list[str]] = {}
    for run in runs:
        try:
            picture = dataflow_plot(load(RunFolder(run.path).config).dataflow())
        except ConfigError as error:
            picture = note(f"The run's file cannot be read any more: {error}")
        pictures.setdefault(picture, []).append(run.name)
    blocks = [note(FLOW)]
    for picture, names in pictures.items():
        if len(pictures) > 1:
            blocks.append(Markup("<h3>{}</h3>").format(", ".join(names)))
        blocks.append(Markup('<div class="scroll">{}</div>').format(picture))
    return blocks


def _settings(runs: Sequence[RunRecord]) -> list[Markup]:
    """Returns what differs between the runs, then each whole file."""
    flat = [flattened(run.table) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    differ = [key for key in keys if len({repr(each.get(key)) for each in flat}) > 1]
    blocks = []
    if len(runs) > 1:
        rows = [[key, *(each.get(key) for each in flat)] for key in differ]
        blocks.append(table(["key", *(run.name for run in runs)], rows) if rows else note("No key differs."))
    return blocks + [details(f"{run.name}: experiment.toml", code(tomli_w.dumps(run.table))) for run in runs]
