"""A run in the terminal while it goes on: curves, where the time goes, alerts, the newest answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from titanrl.report.figures import COLOURS
from titanrl.report.folder import RunFolder
from titanrl.report.panels import groups
from titanrl.report.record import RunRecord
from titanrl.report.times import stage_seconds

__all__ = ["dashboard", "sparkline", "watch"]

BARS = "▁▂▃▄▅▆▇█"
CURVES = 12
"""Curves that are shown, the first ones of a run's page that it has."""
SAMPLES, ALERTS = 3, 4
"""Newest answers and alerts that are shown."""


def watch(path: Path, *, once: bool, every_seconds: float, console: Console) -> None:
    """Shows a run until it has made all its steps, or once.

    Raises:
        ConfigError: the folder holds no metrics.jsonl.
    """
    sizes, run = _sizes(path), RunRecord.read(path)
    if once or not console.is_terminal:
        console.print(dashboard(run, console.width))
        return
    with Live(dashboard(run, console.width), console=console, auto_refresh=False) as live:
        while run.steps_left:
            time.sleep(every_seconds)
            # Taken before the files are read: what comes in between is seen the next time.
            if (now := _sizes(path)) != sizes:
                sizes, run = now, RunRecord.read(path)
                live.update(dashboard(run, console.width), refresh=True)


def _sizes(path: Path) -> list[int]:
    """Returns the sizes of what a run writes as it goes on; -1 for what is not there."""
    folder = RunFolder(path)
    files = (folder.metrics, folder.samples, folder.alerts, folder.config)
    return [file.stat().st_size if file.is_file() else -1 for file in files]


def dashboard(run: RunRecord, width: int) -> RenderableType:
    """Returns the view of a run as it lies on disk, for a terminal of ``width`` columns."""
    return Group(_head(run), _curves(run, width), _times(run, width), *_alerts(run), *_samples(run))


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns numbers as a row of bars from the lowest to the highest, each the mean of its stretch."""
    count = min(width, len(values))
    ends = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[int((mean - low) / span * (len(BARS) - 1) + 0.5)] for mean in means)


def _head(run: RunRecord) -> Text:
    seconds = [line["time/step_seconds"] for line in run.metrics if line.get("time/step_seconds")]
    left = "" if not seconds else f"  {sum(seconds) / len(seconds) * run.steps_left / 60:.1f} minutes left"
    state = left if run.steps_left else "  finished"
    return Text(f"{run.name}  step {run.progress}{state}", style="bold")


def _curves(run: RunRecord, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    keys = [key for panels in groups([run]).values() for panel in panels for key in panel.keys]
    known = run.keys
    room = max(10, min(60, width - 66))
    for key in [key for key in keys if key in known][:CURVES]:
        _, (values,) = run.series(key)
        bounds = f"[dim]{min(values):.4g} to {max(values):.4g}[/]"
        table.add_row(key, f"[cyan]{sparkline(values, room)}[/]", f"[bold]{values[-1]:.4g}[/]", bounds)
    return table


def _times(run: RunRecord, width: int) -> Text:
    """Returns the stages' shares of all time as one bar and their names."""
    spent = stage_seconds(run)
    total, shown = sum(spent.values()), Text()
    bar = Text()
    for i, (stage, seconds) in enumerate(spent.items()):
        colour = COLOURS[i % len(COLOURS)]
        bar.append("█" * round(seconds / total * (width - 2)), style=colour)
        shown.append(f"{stage} {seconds / total:.0%}  ", style=colour)
    return Text("\n").join([bar, shown]) if total else Text("No step is finished yet.")


def _alerts(run: RunRecord) -> list[RenderableType]:
    return [
        Text(f"alert {alert['name']} in step {alert['step']}: {alert['message']}", style="yellow")
        for alert in run.alerts[-ALERTS:]
    ]


def _samples(run: RunRecord) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for row in run.samples[-SAMPLES:]:
        facts = [f"step {row['step']}"]
        facts += [f"reward {row['reward']:.3f}"] if row.get("reward") is not None else []
        facts += [row["finish_reason"]] if "finish_reason" in row else []
        text = f"[dim]{escape(_short(row['prompt']))}[/]\n{escape(_short(row['response']))}"
        shown.append(Panel(text, title=", ".join(facts), title_align="left", border_style="dim"))
    return shown


def _short(text: str, limit: int = 300) -> str:
    """Returns the end of a prompt or an answer that is too long, where what was asked or found stands."""
    text = text.strip()
    return text if len(text) <= limit else f"… {text[-limit:]}"
