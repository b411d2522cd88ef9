"""Figure of the main curves of one or several runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrl.errors import ConfigError
from titanrl.report.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

PANELS = (
    ("eval/score", "held-out score"),
    ("reward/mean", "training reward"),
    ("eval/loss", "held-out loss"),
    ("loss/total", "training loss"),
    ("eval/accuracy", "held-out accuracy"),
    ("loss/margin", "margin"),
    ("sample/response_tokens_mean", "response length, tokens"),
    ("kl/value", "KL to the reference policy, nats"),
    ("loss/entropy", "entropy, nats"),
    ("update/grad_norm", "gradient norm"),
)
"""Metric and title of each panel, in order of priority."""
MAX_PANELS, COLUMNS = 6, 3

Lines = Sequence[Mapping[str, Any]]
"""Lines of a metrics.jsonl."""


def plot(runs: Sequence[Path], file: Path) -> Path:
    """Write a figure of the runs' curves, overlaid, and return its path.

    The figure has the first six panels of which some run has values.

    Args:
        runs: run folders.
        file: the figure; its suffix decides the format.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines: dict[Path, Lines] = {}
    for run in runs:
        if not (run / "metrics.jsonl").is_file():
            raise ConfigError(f"{str(run)!r} holds no metrics.jsonl; name the folder of a run.")
        lines[run] = list(read_metrics(run / "metrics.jsonl"))
    panels = _panels(lines.values())
    num_columns = max(min(len(panels), COLUMNS), 1)
    num_rows = max(-(-len(panels) // COLUMNS), 1)
    size = (11 * num_columns / COLUMNS, 2.8 * num_rows)
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (key, title) in zip(axes, panels, strict=False):
        axis.set_title(title, fontsize=10, loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        for number, run in enumerate(runs):
            _plot_run(axis, lines[run], key, run.name, f"C{number}")
        if key == "eval/score" and axis.dataLim.ymin >= 0:
            axis.set_ylim(bottom=0)
    for axis in axes[max(len(panels) - num_columns, 0) : len(panels)]:
        axis.set_xlabel("step", fontsize=9)
    if len(runs) > 1 and panels:
        axes[0].legend(fontsize=8, frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def _panels(runs: Iterable[Lines]) -> list[tuple[str, str]]:
    """Return the panels of which some run has values."""
    known = {key for lines in runs for line in lines for key, value in line.items() if value is not None}
    # The policy-gradient loss is about 0 by construction.
    known -= {"loss/total"} if "reward/mean" in known else set()
    return [panel for panel in PANELS if panel[0] in known][:MAX_PANELS]


def _plot_run(axis: Axes, lines: Lines, key: str, name: str, colour: str) -> None:
    """Plot one metric of one run, the held-out score with its interval."""
    recorded = [line for line in lines if line.get(key) is not None]
    steps, values = [line["step"] for line in recorded], [line[key] for line in recorded]
    marker = "o" if key.startswith("eval/") else None
    axis.plot(steps, values, color=colour, marker=marker, markersize=4, linewidth=1.6, label=name)
    if key == "eval/score":
        low, high = ([line[f"{key}_{bound}"] for line in recorded] for bound in ("low", "high"))
        axis.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
