"""Figure of several ablations: one panel per ablation, one row per variant, one point per seed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from titanrl.ablation.comparison import Result, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AblationPanel", "plot"]

BASELINE, OTHER = "baseline", "undecided, or no expectation"
COLOURS = {BASELINE: "#333333", "as expected": "#0072b2", "the opposite": "#d55e00", OTHER: "#a0a0a0"}
"""Colours by the result of a variant's expectation; distinguishable with colour blindness."""
COLUMNS = 2


class AblationPanel(NamedTuple):
    """One ablation at its last budget of steps."""

    title: str
    rows: Sequence[Row]
    """Rows of one metric, the baseline first."""
    results: Mapping[str, Result]
    """Variant -> result of its expectation."""


def plot(panels: Sequence[AblationPanel], file: Path) -> Path:
    """Write the figure and return its path; equal results give equal bytes.

    Args:
        panels: the panels.
        file: the figure; its suffix decides the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    num_rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(11, 0.4 + 1.75 * num_rows), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_rows, COLUMNS, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _plot_panel(axis, panel)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=4, linewidth=2.4, label=label)
        for label, colour in COLOURS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(file, metadata={"Software": None})
    return file


def _plot_panel(axis: Axes, panel: AblationPanel) -> None:
    """Plot each variant's seeds, connected across variants, and below them the mean with its interval."""
    all_values = [value for row in panel.rows for value in row.values.values()]
    is_log = min(all_values) > 0 and max(all_values) > 30 * min(all_values)
    for seed in panel.rows[0].values:
        points = [(row.values[seed], y) for y, row in enumerate(panel.rows) if seed in row.values]
        axis.plot(*zip(*points, strict=True), color="#000000", alpha=0.15, linewidth=0.8)
    for y, row in enumerate(panel.rows):
        result = BASELINE if y == 0 else panel.results.get(row.variant, OTHER)
        colour = COLOURS.get(result, COLOURS[OTHER])
        axis.plot(list(row.values.values()), [y] * len(row.values), "o", color=colour, markersize=4)
        low = max(row.low, min(all_values) / 2) if is_log else row.low
        axis.plot([low, row.high], [y + 0.28] * 2, color=colour, linewidth=2.4, solid_capstyle="butt")
        axis.plot([row.mean], [y + 0.28], "|", color=colour, markersize=9, markeredgewidth=2)
    if is_log:
        axis.set_xscale("log")
    axis.set_yticks(range(len(panel.rows)), [row.variant for row in panel.rows], fontsize=8)
    axis.set_ylim(len(panel.rows) - 0.4, -0.5)
    axis.set_title(textwrap.fill(panel.title, 60), fontsize=9, loc="left")
    axis.set_xlabel(panel.rows[0].metric, fontsize=8, loc="right")
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
