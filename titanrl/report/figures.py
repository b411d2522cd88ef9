"""Bokeh figures of a page: curves with intervals, overlaid, and stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

__all__ = ["COLOURS", "Line", "curves", "stacked_bars"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Colours of lines, used in turn; distinguishable with colour blindness."""
GREY = "#8b93a1"
"""Colour of axes and titles; readable on white and on black."""
MAX_POINTS = 1000
"""Maximum number of points of a line; longer lines keep the minimum and the maximum of each segment."""


class Line(NamedTuple):
    """One curve; the page's legend hides and shows curves by name."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """Bounds of the interval around the curve; both as long as ``y``."""
    dash: str = "solid"
    has_markers: bool = False
    """Whether each point is marked, for curves of few points."""
    detail: str = ""
    """Text that distinguishes lines of the same name in tooltips."""


def curves(title: str, lines: Sequence[Line], *, x: str = "step", height: int = 215) -> Figure:
    """Return a figure of several curves.

    Args:
        title: title of the figure.
        lines: the curves.
        x: label of the x axis.
        height: height in pixels.
    """
    from bokeh.models import HoverTool

    plot = _empty(title, height)
    plot.xaxis.axis_label = x
    targets = []
    for line in lines:
        indices = _thinned(line.y)
        data: dict[str, Any] = {"x": _select(line.x, indices), "y": _select(line.y, indices)}
        data["label"] = [f"{line.name} {line.detail}".strip()] * len(indices)
        if line.low is not None and line.high is not None:
            data |= {"low": _select(line.low, indices), "high": _select(line.high, indices)}
            plot.varea("x", "low", "high", source=data, color=line.colour, alpha=0.16, name=line.name)
        renderer = plot.line(
            "x", "y", source=data, color=line.colour, line_width=1.7, line_dash=line.dash, name=line.name
        )
        targets.append(renderer)
        if line.has_markers or len(indices) == 1:
            plot.scatter("x", "y", source=data, color=line.colour, size=6, name=line.name)
    values = {value for line in lines for value in line.y}
    if len(values) == 1 and not any(line.low for line in lines):
        # By default 0.00001 appears as a line at 0 between -1 and 1, and a line at 0 is hidden by the axis.
        (value,) = values
        plot.y_range.start, plot.y_range.end = sorted((value / 2, 1.5 * value)) if value else (-0.1, 1.0)
    tooltips = [("", "@label"), (x, "@x"), ("", "@y{%.5g}")]
    plot.add_tools(HoverTool(tooltips=tooltips, renderers=targets, mode="vline", formatters={"@y": "printf"}))
    return plot


def stacked_bars(
    title: str,
    x: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    *,
    height: int = 250,
) -> Figure:
    """Return a figure of stacked bars.

    Args:
        title: title of the figure.
        x: steps, one per bar.
        parts: name -> seconds per bar, from the bottom up.
        colours: name -> colour.
        height: height in pixels.
    """
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
        title=title,
        height=height,
        sizing_mode="stretch_width",
        tools="box_zoom,xwheel_zoom,reset,save",
        active_drag=None,
        active_scroll=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        toolbar_location="above",
    )
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


def _thinned(values: Sequence[float]) -> list[int]:
    """Return the indices of the plotted points: all, or the minimum and the maximum of each segment."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    segments = np.array_split(np.asarray(values), MAX_POINTS // 2)
    starts = np.cumsum([0, *(len(segment) for segment in segments)])
    indices = {0, len(values) - 1}
    for start, segment in zip(starts[:-1], segments, strict=True):
        indices |= {int(start + segment.argmin()), int(start + segment.argmax())}
    return sorted(indices)


def _select(values: Sequence[float], indices: Sequence[int]) -> list[float]:
    return [values[i] for i in indices]
