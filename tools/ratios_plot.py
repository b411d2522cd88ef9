"""The ratios of the benchmark suite as a picture: a panel a file, a line a benchmark and peer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.benchmark_results import Ratio, by_subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot", "figure"]

LEFT, RIGHT = 0.5, 200.0
"""Ends of the axis, times as fast."""


def plot(ratios: Sequence[Ratio], to: Path) -> Path:
    """Writes the picture and returns its path; of equal ratios the same bytes.

    Args:
        ratios: sorted by benchmark. to: the picture; its ending decides the format.
    """
    figure(ratios).savefig(to, metadata={"Software": None})
    return to


def figure(ratios: Sequence[Ratio]) -> Figure:
    """Returns what ``sample_from_logits`` writes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = by_subject(ratios)
    heights = [len(part) + 1.2 for part in parts.values()]
    whole = Figure(figsize=(9, 0.6 + 0.2 * sum(heights)), layout="constrained", dpi=120)
    FigureCanvasAgg(whole)
    axes = whole.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for number, (axis, (subject, part)) in enumerate(zip(axes, parts.items(), strict=True)):
        axis.set_title(subject, fontsize=9, loc="left")
        _draw(axis, part, f"C{number}")
    ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200]
    axes[-1].set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axes[-1].set_xlabel("times as fast, or as small, as the peer", fontsize=9)
    return whole


def _draw(axis: Axes, part: Sequence[Ratio], colour: str) -> None:
    for place, ratio in enumerate(part):
        if ratio.low is not None and ratio.high is not None:
            axis.plot([ratio.low, ratio.high], [place, place], color=colour, alpha=0.4, linewidth=4)
        axis.plot([ratio.ratio], [place], "o", color=colour, markersize=5)
    axis.axvline(1.0, color="#333333", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlim(LEFT, RIGHT)
    axis.minorticks_off()
    names = [f"{ratio.name.replace('_', ' ')}, {ratio.peer.replace('_', ' ')}" for ratio in part]
    axis.set_yticks(range(len(part)), names, fontsize=7)
    axis.set_ylim(len(part) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.25)
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)
