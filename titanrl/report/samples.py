"""The samples of runs as a browser: filtered by step, reward, ending; tokens coloured by what they got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from titanrl.report.html import note, render, script_json
from titanrl.report.record import RunRecord

__all__ = ["TOKEN_NUMBERS", "sample_browser"]

MAX_SAMPLES = 1500
"""Rows that a page holds; of more, those of evenly spread steps."""

TOKEN_NUMBERS = {
    "advantage": "advantage",
    "log_ratio": "log-ratio, trainer to sampler",
    "ref_log_ratio": "log-ratio, policy to reference",
    "logprob": "log-prob of the sampler",
}
"""Key of a sample's ``per_token`` -> what its colours stand for."""


def sample_browser(runs: Sequence[RunRecord]) -> Markup:
    """Returns the browser of all runs' samples."""
    rows = [{"run": run.name, **sample} for run in runs for sample in run.samples]
    if not rows:
        return note("The runs wrote no samples; [report] samples_per_step sets how many a step they write.")
    steps = sorted({row["step"] for row in rows})
    keep = min(len(steps), max(1, len(steps) * MAX_SAMPLES // len(rows)))
    chosen = {steps[i * (len(steps) - 1) // max(keep - 1, 1)] for i in range(keep)}
    shown = [row for row in rows if row["step"] in chosen]
    colours = {key: text for key, text in TOKEN_NUMBERS.items() if any(key in _tokens(row) for row in shown)}
    return render(
        "samples.html", rows=script_json(shown), colours=colours, num_shown=len(shown), num_rows=len(rows),
        runs=list(dict.fromkeys(row["run"] for row in shown)),
        endings=sorted({row["finish_reason"] for row in shown if "finish_reason" in row}),
        scored=any("reward" in row for row in shown), first=min(chosen), last=max(chosen),
    )  # fmt: skip


def _tokens(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row.get("per_token", {})
    return found
