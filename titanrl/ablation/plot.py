"""The findings as a picture: a panel an ablation, a line a variant, a point a seed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from titanrl.ablation.comparison import Outcome, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Panel", "plot"]

BASELINE, OTHER = "baseline", "undecided, or nothing expected"
COLOURS = {BASELINE: "#333333", "as expected": "#0072b2", "the opposite": "#d55e00", OTHER: "#a0a0a0"}
"""By the outcome of what was expected of a variant; told apart by the colour-blind too."""
COLUMNS = 2


class Panel(NamedTuple):
    """One ablation at its last budget of steps."""

    title: str
    rows: Sequence[Row]
    """The deciding metric's, the baseline first."""
    outcomes: Mapping[str, Outcome]
    """Variant -> what came of what was expected of it."""


def plot(panels: Sequence[Panel], to: Path) -> Path:
    """Writes the picture and returns its path; of equal results the same bytes.

    Args:
        to: the picture; its ending decides the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(11, 0.4 + 1.75 * lines), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, COLUMNS, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    kinds = [
        Line2D([], [], color=colour, marker="o", markersize=4, linewidth=2.4, label=kind)
        for kind, colour in COLOURS.items()
    ]
    figure.legend(handles=kinds, loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=9)
    figure.savefig(to, metadata={"Software": None})
    return to


def _draw(axis: Axes, panel: Panel) -> None:
    """Draws each variant's seeds, threads along a seed, and under the points the mean with its interval."""
    everything = [value for row in panel.rows for value in row.values.values()]
    wide = min(everything) > 0 and max(everything) > 30 * min(everything)
    for seed in panel.rows[0].values:
        found = [(row.values[seed], place) for place, row in enumerate(panel.rows) if seed in row.values]
        axis.plot(*zip(*found, strict=True), color="#000000", alpha=0.15, linewidth=0.8)
    for place, row in enumerate(panel.rows):
        outcome = BASELINE if place == 0 else panel.outcomes.get(row.variant, OTHER)
        colour = COLOURS.get(outcome, COLOURS[OTHER])
        axis.plot(list(row.values.values()), [place] * len(row.values), "o", color=colour, markersize=4)
        low = max(row.low, min(everything) / 2) if wide else row.low
        axis.plot([low, row.high], [place + 0.28] * 2, color=colour, linewidth=2.4, solid_capstyle="butt")
        axis.plot([row.mean], [place + 0.28], "|", color=colour, markersize=9, markeredgewidth=2)
    if wide:
        axis.set_xscale("log")
    axis.set_yticks(range(len(panel.rows)), [row.variant for row in panel.rows], fontsize=8)
    axis.set_ylim(len(panel.rows) - 0.4, -0.5)
    axis.set_title(textwrap.fill(panel.title, 60), fontsize=9, loc="left")
    axis.set_xlabel(panel.rows[0].metric, fontsize=8, loc="right")
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
