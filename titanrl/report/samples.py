"""Sample browser of a page: filters by step, reward and finish reason; tokens coloured by value."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from titanrl.report.html import note, render, script_json
from titanrl.report.record import RunRecord

__all__ = ["TOKEN_VALUES", "sample_browser"]

MAX_SAMPLES = 1500
"""Maximum number of rows of a page; of more rows, those of evenly spread steps are taken."""

TOKEN_VALUES = {
    "advantage": "advantage",
    "log_ratio": "log-ratio, trainer to sampler",
    "ref_log_ratio": "log-ratio, policy to reference",
    "logprob": "log-prob of the sampler",
}
"""Key of a sample's ``per_token`` -> label of its colours."""


def sample_browser(runs: Sequence[RunRecord]) -> Markup:
    """Return the browser of the samples of all runs."""
    rows = [{"run": run.name, **sample} for run in runs for sample in run.samples]
    if not rows:
        return note("The runs have no samples; [report] samples_per_step sets their number per step.")
    steps = sorted({row["step"] for row in rows})
    num_steps = min(len(steps), max(1, len(steps) * MAX_SAMPLES // len(rows)))
    selected_steps = {steps[i * (len(steps) - 1) // max(num_steps - 1, 1)] for i in range(num_steps)}
    selected = [row for row in rows if row["step"] in selected_steps]
    token_keys = {key for row in selected for key in row.get("per_token", {})}
    return render(
        "samples.html",
        rows=script_json(selected),
        colours={key: label for key, label in TOKEN_VALUES.items() if key in token_keys},
        num_selected=len(selected),
        num_rows=len(rows),
        runs=list(dict.fromkeys(row["run"] for row in selected)),
        finish_reasons=sorted({row["finish_reason"] for row in selected if "finish_reason" in row}),
        has_rewards=any("reward" in row for row in selected),
        first=min(selected_steps),
        last=max(selected_steps),
    )
