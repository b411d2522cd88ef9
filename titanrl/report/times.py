"""Stage times of runs: stacked per step, and as shares of the total."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from titanrl.report.figures import COLOURS, stacked_bars
from titanrl.report.html import figures, legend, note, table
from titanrl.report.record import RunRecord

__all__ = ["stage_seconds", "stage_times"]

MAX_BARS = 250
"""Maximum number of bars; of more steps, every n-th is plotted. Shares include all steps."""

NO_STAGES = ("time/step_seconds", "time/unix_seconds")
"""The duration of the whole step, and the time at which it was recorded."""


def stage_times(runs: Sequence[RunRecord]) -> list[Markup]:
    """Return a table of the stages' shares of each run's time, and a figure per run."""
    keys = dict.fromkeys(key for run in runs for line in run.metrics for key in line)
    stages = [_stage(key) for key in keys if _is_stage(key)]
    colours = {stage: COLOURS[i % len(COLOURS)] for i, stage in enumerate(stages)}
    plots, rows = [], []
    for run in runs:
        lines = [line for line in run.metrics if line.get("time/step_seconds")]
        seconds = {stage: [line.get(f"time/{stage}_seconds") or 0.0 for line in lines] for stage in stages}
        total = sum(map(sum, seconds.values()))
        if not total:
            continue
        rows.append([run.name, *(f"{sum(seconds[stage]) / total:.1%}" for stage in stages)])
        stride = -(-len(lines) // MAX_BARS)
        parts = {stage: values[::stride] for stage, values in seconds.items() if any(values)}
        steps = [line["step"] for line in lines[::stride]]
        plots.append(stacked_bars(f"{run.name}: seconds per step", steps, parts, colours))
    if not plots:
        return [note("No step is finished yet.")]
    return [table(["run", *stages], rows), legend(colours), figures(*plots, wide=len(plots) == 1)]


def stage_seconds(run: RunRecord) -> dict[str, float]:
    """Return stage -> total seconds of a run, in order of first appearance."""
    seconds: dict[str, float] = {}
    for line in run.metrics:
        for key, value in line.items():
            if _is_stage(key):
                seconds[_stage(key)] = seconds.get(_stage(key), 0.0) + (value or 0.0)
    return seconds


def _is_stage(key: str) -> bool:
    return key.startswith("time/") and key.endswith("_seconds") and key not in NO_STAGES


def _stage(key: str) -> str:
    return key.removeprefix("time/").removesuffix("_seconds")
