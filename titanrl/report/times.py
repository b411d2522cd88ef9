"""Where the time of runs goes: each step's stages stacked, and their shares."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from titanrl.report.figures import COLOURS, stack
from titanrl.report.html import figures, legend, note, table
from titanrl.report.record import RunRecord

__all__ = ["stage_seconds", "stage_times"]

MAX_BARS = 250
"""Of more steps every second, third, ... is drawn; the shares are of all."""


def stage_times(runs: Sequence[RunRecord]) -> list[Markup]:
    """Returns a table of the stages' shares of each run's time, and a figure for each run."""
    named = [key for run in runs for line in run.metrics for key in line]
    stages = [_stage(key) for key in dict.fromkeys(named) if _is_stage(key)]
    colours = {stage: COLOURS[i % len(COLOURS)] for i, stage in enumerate(stages)}
    plots, rows = [], []
    for run in runs:
        lines = [line for line in run.metrics if line.get("time/step_seconds")]
        spent = {stage: [line.get(f"time/{stage}_seconds") or 0.0 for line in lines] for stage in stages}
        total = sum(map(sum, spent.values()))
        if not total:
            continue
        rows.append([run.name, *(f"{sum(spent[stage]) / total:.1%}" for stage in stages)])
        every = -(-len(lines) // MAX_BARS)
        parts = {stage: values[::every] for stage, values in spent.items() if any(values)}
        steps = [line["step"] for line in lines[::every]]
        plots.append(stack(f"{run.name}: seconds of a step", steps, parts, colours))
    if not plots:
        return [note("No step is finished yet.")]
    return [table(["run", *stages], rows), legend(colours), figures(*plots, wide=len(plots) == 1)]


def stage_seconds(run: RunRecord) -> dict[str, float]:
    """Returns stage -> seconds in the whole run, in the order in which stages first appear."""
    spent: dict[str, float] = {}
    for line in run.metrics:
        for key, value in line.items():
            if _is_stage(key):
                spent[_stage(key)] = spent.get(_stage(key), 0.0) + (value or 0.0)
    return spent


def _is_stage(key: str) -> bool:
    return key.startswith("time/") and key.endswith("_seconds") and key != "time/step_seconds"


def _stage(key: str) -> str:
    return key.removeprefix("time/").removesuffix("_seconds")
