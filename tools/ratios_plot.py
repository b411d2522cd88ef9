"""Figure of the benchmark ratios: one panel per file, one row per benchmark and peer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.benchmark_results import Ratio, by_subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot", "figure"]

MIN_RATIO, MAX_RATIO = 0.5, 200.0
"""Bounds of the axis."""


def plot(ratios: Sequence[Ratio], file: Path) -> Path:
    """Write the figure and return its path; equal ratios give equal bytes.

    Args:
        ratios: the ratios, sorted by benchmark.
        file: the figure; its suffix decides the format.
    """
    figure(ratios).savefig(file, metadata={"Software": None})
    return file


def figure(ratios: Sequence[Ratio]) -> Figure:
    """Return the figure that ``plot`` writes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = by_subject(ratios)
    heights = [len(group) + 1.2 for group in groups.values()]
    figure = Figure(figsize=(9, 0.6 + 0.2 * sum(heights)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for number, (axis, (subject, group)) in enumerate(zip(axes, groups.items(), strict=True)):
        axis.set_title(subject, fontsize=9, loc="left")
        _plot_group(axis, group, f"C{number}")
    ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200]
    axes[-1].set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axes[-1].set_xlabel("speed, or inverse memory, relative to the peer", fontsize=9)
    return figure


def _plot_group(axis: Axes, group: Sequence[Ratio], colour: str) -> None:
    for y, ratio in enumerate(group):
        if ratio.low is not None and ratio.high is not None:
            axis.plot([ratio.low, ratio.high], [y, y], color=colour, alpha=0.4, linewidth=4)
        axis.plot([ratio.ratio], [y], "o", color=colour, markersize=5)
    axis.axvline(1.0, color="#333333", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlim(MIN_RATIO, MAX_RATIO)
    axis.minorticks_off()
    names = [f"{ratio.name.replace('_', ' ')}, {ratio.peer.replace('_', ' ')}" for ratio in group]
    axis.set_yticks(range(len(group)), names, fontsize=7)
    axis.set_ylim(len(group) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.25)
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)
