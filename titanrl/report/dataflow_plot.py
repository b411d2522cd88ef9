"""The dataflow of a step as a picture: batch keys run from whoever writes them to whoever reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from titanrl.algorithm.dataflow import Node
from titanrl.protocols.batch import key_name
from titanrl.report.html import render

__all__ = ["dataflow_plot"]

LETTER, LEFT, TOP, COLUMN, ROW = 7.5, 168, 150, 62, 21
"""Widths of a letter of the keys' names, of these names at least, and of an actor; heights of the actors'
names and of a key; pixels."""


class Lane(NamedTuple):
    """One key: a line from its first writer to its last reader."""

    key: str
    y: int
    start: int
    stop: int
    writes: list[int]
    reads: list[int]


def dataflow_plot(flow: Sequence[Node]) -> Markup:
    """Returns the picture: one column an actor in the order they act, one line a key.

    A full dot writes the key, a ring reads it.
    """
    keys = list(dict.fromkeys(key for actor in flow for key in (*actor.writes, *actor.reads)))
    # The first dot has half a column between itself and the longest name.
    left = max(LEFT, *(int(LETTER * len(key_name(key))) for key in keys))
    columns = [left + COLUMN * i + COLUMN // 2 for i in range(len(flow))]
    lanes = []
    for number, key in enumerate(keys):
        writes = [x for x, actor in zip(columns, flow, strict=True) if key in actor.writes]
        reads = [x for x, actor in zip(columns, flow, strict=True) if key in actor.reads]
        y = TOP + 24 + ROW * number
        lanes.append(Lane(key_name(key), y, min(writes + reads), max(writes + reads), writes, reads))
    stages: list[dict[str, Any]] = []
    for x, actor in zip(columns, flow, strict=True):
        if not stages or stages[-1]["name"] != actor.stage:
            stages.append({"name": actor.stage, "x": x - COLUMN // 2, "width": 0})
        stages[-1]["width"] += COLUMN
    return render(
        "dataflow.svg", lanes=lanes, stages=stages, top=TOP,
        actors=[(x, actor.name) for x, actor in zip(columns, flow, strict=True)],
        width=left + COLUMN * len(flow) + 96, height=TOP + 34 + ROW * len(keys),
    )  # fmt: skip
