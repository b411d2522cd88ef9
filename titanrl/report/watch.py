"""Terminal dashboard of a run: curves, stage times, alerts, the newest samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text

from titanrl.report.figures import COLOURS
from titanrl.report.folder import RunFolder
from titanrl.report.panels import sections
from titanrl.report.record import RunRecord
from titanrl.report.times import stage_seconds

__all__ = ["dashboard", "sparkline", "watch"]

BARS = "▁▂▃▄▅▆▇█"
MAX_CURVES = 12
"""Maximum number of curves, in the order of a run's page."""
MAX_SAMPLES, MAX_ALERTS = 3, 4
"""Maximum numbers of samples and alerts; the newest are shown."""
MAX_TURNS = 6
"""Maximum number of messages of a rollout in an environment; the last are shown."""


def watch(path: Path, *, once: bool, every_seconds: float, console: Console) -> None:
    """Show a run until its last step, or once.

    Args:
        path: folder of the run.
        once: whether to print the current state and return.
        every_seconds: seconds between two updates.
        console: where to show; outside a terminal the state is printed once.

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
            # Taken before the files are read, so that changes in between trigger another update.
            if (now := _sizes(path)) != sizes:
                sizes, run = now, RunRecord.read(path)
                live.update(dashboard(run, console.width), refresh=True)


def _sizes(path: Path) -> list[int]:
    """Return the sizes of the files that a run writes; -1 for missing files."""
    folder = RunFolder(path)
    files = (folder.metrics, folder.samples, folder.alerts, folder.config)
    return [file.stat().st_size if file.is_file() else -1 for file in files]


def dashboard(run: RunRecord, width: int) -> RenderableType:
    """Return the view of a run for a terminal of ``width`` columns."""
    return Group(_head(run), _curves(run, width), _times(run, width), *_alerts(run), *_samples(run))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return numbers as a row of at most ``width`` bars, each the mean of a segment."""
    count = min(width, len(values))
    ends = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    scale = (high - low) or 1.0
    return "".join(BARS[int((mean - low) / scale * (len(BARS) - 1) + 0.5)] for mean in means)


def _head(run: RunRecord) -> Text:
    seconds = [line["time/step_seconds"] for line in run.metrics if line.get("time/step_seconds")]
    left = "" if not seconds else f"  {sum(seconds) / len(seconds) * run.steps_left / 60:.1f} minutes left"
    state = left if run.steps_left else "  finished"
    return Text(f"{run.name}  step {run.progress}{state}", style="bold")


def _curves(run: RunRecord, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    keys = [key for panels in sections([run]).values() for panel in panels for key in panel.keys]
    bar_width = max(10, min(60, width - 66))
    for key in [key for key in keys if key in run.keys][:MAX_CURVES]:
        _, (values,) = run.series(key)
        bounds = f"[dim]{min(values):.4g} to {max(values):.4g}[/]"
        table.add_row(key, f"[cyan]{sparkline(values, bar_width)}[/]", f"[bold]{values[-1]:.4g}[/]", bounds)
    return table


def _times(run: RunRecord, width: int) -> Text:
    """Return the stages' shares of the total time as one bar with labels."""
    by_stage = stage_seconds(run)
    total = sum(by_stage.values())
    bar, labels = Text(), Text()
    for i, (stage, seconds) in enumerate(by_stage.items()):
        colour = COLOURS[i % len(COLOURS)]
        bar.append("█" * round(seconds / total * (width - 2)), style=colour)
        labels.append(f"{stage} {seconds / total:.0%}  ", style=colour)
    return Text("\n").join([bar, labels]) if total else Text("No step is finished yet.")


def _alerts(run: RunRecord) -> list[RenderableType]:
    return [
        Text(f"alert {alert['name']} in step {alert['step']}: {alert['message']}", style="yellow")
        for alert in run.alerts[-MAX_ALERTS:]
    ]


def _samples(run: RunRecord) -> list[RenderableType]:
    boxes: list[RenderableType] = []
    for row in run.samples[-MAX_SAMPLES:]:
        facts = [f"step {row['step']}"]
        facts += [f"reward {row['reward']:.3f}"] if row.get("reward") is not None else []
        facts += [row["finish_reason"]] if "finish_reason" in row else []
        text = f"[dim]{escape(_short(row['prompt']))}[/]\n{escape(_short(row['response']))}"
        if turns := row.get("transcript"):
            text = "\n".join(_turn(message) for message in turns[-MAX_TURNS:])
        boxes.append(Box(text, title=", ".join(facts), title_align="left", border_style="dim"))
    return boxes


def _turn(message: Mapping[str, Any]) -> str:
    """Return a message of a rollout; those of the policy are bright."""
    text = f"{message.get('role')}: {escape(_short(str(message.get('content') or '')))}"
    return text if message.get("role") == "assistant" else f"[dim]{text}[/]"


def _short(text: str, limit: int = 300) -> str:
    """Return the end of an overlong prompt or response, which holds the question or the final answer."""
    text = text.strip()
    return text if len(text) <= limit else f"… {text[-limit:]}"
