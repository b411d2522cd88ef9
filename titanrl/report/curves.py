"""Curves of one or several runs as a picture: held-out score with its interval, reward, length, KL, ..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError
from titanrl.report.jsonl import read_jsonl

__all__ = ["plot"]

PANELS = (
    ("eval/score", "held-out score"),
    ("reward/mean", "training reward"),
    ("eval/loss", "held-out loss"),
    ("loss/total", "training loss"),
    ("eval/accuracy", "held-out accuracy"),
    ("loss/margin", "margin"),
    ("sample/response_tokens_mean", "response length, tokens"),
    ("kl/value", "KL to the reference, nats"),
    ("loss/entropy", "entropy, nats"),
    ("update/grad_norm", "gradient norm"),
)
"""Metric and title of each panel; a picture shows the first six that a run has."""
NUM_PANELS = 6


def plot(runs: Sequence[Path], to: Path) -> Path:
    """Writes a PNG of the runs' curves, overlaid, and returns its path.

    Args:
        runs: run folders. to: the picture; its ending decides the format.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines: dict[Path, list[dict[str, Any]]] = {}
    for run in runs:
        if not (run / "metrics.jsonl").is_file():
            raise ConfigError(f"{str(run)!r} holds no metrics.jsonl; name the folder of a run.")
        lines[run] = list(read_jsonl(run / "metrics.jsonl"))
    known = {
        key for each in lines.values() for line in each for key, value in line.items() if value is not None
    }
    # loss/total of a policy gradient says nothing, and has no panel beside rewards.
    known -= {"loss/total"} if "reward/mean" in known else set()
    panels = sorted(PANELS, key=lambda panel: panel[0] not in known)[:NUM_PANELS]
    figure = Figure(figsize=(11, 5.6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, NUM_PANELS // 2)
    for number, run in enumerate(runs):
        for axis, (key, title) in zip(axes.flat, panels, strict=True):
            points = [(line["step"], line[key]) for line in lines[run] if line.get(key) is not None]
            axis.set_title(title, fontsize=10, loc="left")
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            if not points:
                continue
            steps, values = zip(*points, strict=True)
            marker = "o" if key.startswith("eval/") else None
            axis.plot(
                steps, values, color=f"C{number}", marker=marker, markersize=4, linewidth=1.6, label=run.name
            )
            if key == "eval/score":
                low, high = (
                    [line[f"{key}_{end}"] for line in lines[run] if line.get(key) is not None]
                    for end in ("low", "high")
                )
                axis.fill_between(steps, low, high, color=f"C{number}", alpha=0.18, linewidth=0)
    for axis, (key, _) in zip(axes.flat, panels, strict=True):
        if key == "eval/score" and axis.has_data() and axis.dataLim.ymin >= 0:
            axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("step", fontsize=9)
    if len(runs) > 1:
        axes[0, 0].legend(fontsize=8, frameon=False)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to)
    return to
