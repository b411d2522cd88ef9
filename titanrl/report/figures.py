"""Figures of a page: curves with bands, several runs overlaid, and parts that stack to a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

__all__ = ["COLOURS", "Line", "curves", "stack"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Told apart by people who see few colours; used in turn."""
GREY = "#8b93a1"
"""Of what is no line; readable on white and on black."""
MAX_POINTS = 1000
"""More points of a line are thinned: of each stretch the lowest and the highest stay."""


class Line(NamedTuple):
    """One curve; its name is what the page's legend hides and shows."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """With ``low`` the band around it; both as long as ``y``."""
    dash: str = "solid"
    marked: bool = False
    """Whether each point gets a dot: few points, far apart."""
    what: str = ""
    """What tells it from other lines of the same name, shown beside the pointer."""


def curves(title: str, lines: Sequence[Line], *, x: str = "step", height: int = 215) -> Figure:
    """Returns curves over ``x`` in one figure."""
    from bokeh.models import HoverTool

    plot = _empty(title, height)
    plot.xaxis.axis_label = x
    targets = []
    for line in lines:
        kept = _kept(line.y)
        data: dict[str, Any] = {"x": _taken(line.x, kept), "y": _taken(line.y, kept)}
        data["what"] = [f"{line.name} {line.what}".strip()] * len(kept)
        if line.low is not None and line.high is not None:
            data |= {"low": _taken(line.low, kept), "high": _taken(line.high, kept)}
            plot.varea("x", "low", "high", source=data, color=line.colour, alpha=0.16, name=line.name)
        drawn = plot.line(
            "x", "y", source=data, color=line.colour, line_width=1.7, line_dash=line.dash, name=line.name
        )
        targets.append(drawn)
        if line.marked or len(kept) == 1:
            plot.scatter("x", "y", source=data, color=line.colour, size=6, name=line.name)
    values = {value for line in lines for value in line.y}
    if len(values) == 1 and not any(line.low for line in lines):
        # The library would show 0.00001 as a line at 0 between -1 and 1; at 0 a line would hide in the axis.
        (value,) = values
        plot.y_range.start, plot.y_range.end = sorted((value / 2, 1.5 * value)) if value else (-0.1, 1.0)
    tooltips = [("", "@what"), (x, "@x"), ("", "@y{%.5g}")]
    plot.add_tools(HoverTool(tooltips=tooltips, renderers=targets, mode="vline", formatters={"@y": "printf"}))
    return plot


def stack(
    title: str,
    x: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    *,
    height: int = 250,
) -> Figure:
    """Returns bars, one for each of ``x``, of which ``parts`` are the pieces, seconds, from the bottom up."""
    from bokeh.models import HoverTool

    plot = _empty(title, height)
    plot.xaxis.axis_label = "step"
    plot.y_range.start = 0
    width = float(min(np.diff(x))) * 0.85 if len(x) > 1 else 0.85
    plot.vbar_stack(
        list(parts),
        x="x",
        width=width,
        source={"x": list(x), **parts},
        color=[colours[name] for name in parts],
    )
    plot.add_tools(HoverTool(tooltips=[("", "$name"), ("step", "@x"), ("", "@$name{0.000} s")]))
    return plot


def _empty(title: str, height: int) -> Figure:
    from bokeh.plotting import figure

    plot = figure(
        title=title, height=height, sizing_mode="stretch_width", tools="box_zoom,xwheel_zoom,reset,save",
        active_drag=None, active_scroll=None, background_fill_color=None, border_fill_color=None,
        outline_line_color=None, toolbar_location="above",
    )  # fmt: skip
    plot.toolbar.autohide, plot.toolbar.logo = True, None
    plot.title.text_color, plot.title.text_font_size = GREY, "12.5px"
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = GREY, 0.22
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = GREY
        axis.axis_label_text_font_style, axis.axis_label_standoff = "normal", 2
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "11px"
    return plot


def _kept(values: Sequence[float]) -> list[int]:
    """Returns the indices of the points that are drawn: all, or each stretch's lowest and highest."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    parts = np.array_split(np.asarray(values), MAX_POINTS // 2)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    found = {0, len(values) - 1}
    for start, part in zip(starts[:-1], parts, strict=True):
        found |= {int(start + part.argmin()), int(start + part.argmax())}
    return sorted(found)


def _taken(values: Sequence[float], kept: Sequence[int]) -> list[float]:
    return [values[i] for i in kept]
