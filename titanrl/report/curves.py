"""Curves of one or several runs as a picture: held-out score with its interval, reward, length, KL, ..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from titanrl.errors import ConfigError
from titanrl.report.jsonl import read_jsonl

__all__ = ["plot"]

PANELS = (
    ("eval/score", "held-out score"),
    ("reward/mean", "training reward"),
    ("sample/response_tokens_mean", "response length, tokens"),
    ("kl/value", "KL to the reference, nats"),
    ("loss/entropy", "entropy, nats"),
    ("update/grad_norm", "gradient norm"),
)


def plot(runs: Sequence[Path], to: Path) -> Path:
    """Writes a PNG of the runs' curves, overlaid, and returns its path.

    Args:
        runs: run folders. to: the picture; its ending decides the format.

    Raises:
        ConfigError: a folder holds no metrics.jsonl.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    for number, run in enumerate(runs):
        if not (run / "metrics.jsonl").is_file():
            raise ConfigError(f"{str(run)!r} holds no metrics.jsonl; name the folder of a run.")
        lines = list(read_jsonl(run / "metrics.jsonl"))
        for axis, (key, title) in zip(axes.flat, PANELS, strict=True):
            points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
            axis.set_title(title, fontsize=10, loc="left")
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            if not points:
                continue
            steps, values = zip(*points, strict=True)
            marker = "o" if key == "eval/score" else None
            axis.plot(
                steps, values, color=f"C{number}", marker=marker, markersize=4, linewidth=1.6, label=run.name
            )
            if key == "eval/score":
                low, high = (
                    [line[f"{key}_{end}"] for line in lines if line.get(key) is not None]
                    for end in ("low", "high")
                )
                axis.fill_between(steps, low, high, color=f"C{number}", alpha=0.18, linewidth=0)
                axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("step", fontsize=9)
    if len(runs) > 1:
        axes[0, 0].legend(fontsize=8, frameon=False)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to)
    return to
