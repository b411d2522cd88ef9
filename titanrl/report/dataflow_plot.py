"""Diagram of the dataflow of a step: batch keys as lines from their writers to their readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from titanrl.algorithm.dataflow import Node
from titanrl.protocols.batch import key_name
from titanrl.report.html import render

__all__ = ["dataflow_plot"]

LETTER_WIDTH, MIN_LEFT, TOP, COLUMN_WIDTH, ROW_HEIGHT = 7.5, 168, 150, 62, 21
"""Pixels: width of a letter of a key's name, minimum width of these names, height of the nodes' names, width
of a node's column, height of a key's row."""


class Lane(NamedTuple):
    """A batch key, shown as a line from its first writer to its last reader."""

    key: str
    y: int
    start: int
    stop: int
    writes: list[int]
    reads: list[int]


def dataflow_plot(flow: Sequence[Node]) -> Markup:
    """Return the diagram as SVG: one column per node in execution order, one line per key.

    A filled dot marks a node that writes the key, a ring one that reads it.
    """
    keys = list(dict.fromkeys(key for node in flow for key in (*node.writes, *node.reads)))
    # Half a column separates the first dot from the longest name.
    left = max(MIN_LEFT, *(int(LETTER_WIDTH * len(key_name(key))) for key in keys))
    columns = [left + COLUMN_WIDTH * i + COLUMN_WIDTH // 2 for i in range(len(flow))]
    lanes = []
    for number, key in enumerate(keys):
        writes = [x for x, node in zip(columns, flow, strict=True) if key in node.writes]
        reads = [x for x, node in zip(columns, flow, strict=True) if key in node.reads]
        y = TOP + 24 + ROW_HEIGHT * number
        lanes.append(Lane(key_name(key), y, min(writes + reads), max(writes + reads), writes, reads))
    stages: list[dict[str, Any]] = []
    for x, node in zip(columns, flow, strict=True):
        if not stages or stages[-1]["name"] != node.stage:
            stages.append({"name": node.stage, "x": x - COLUMN_WIDTH // 2, "width": 0})
        stages[-1]["width"] += COLUMN_WIDTH
    return render(
        "dataflow.svg",
        lanes=lanes,
        stages=stages,
        top=TOP,
        nodes=[(x, node.name) for x, node in zip(columns, flow, strict=True)],
        width=left + COLUMN_WIDTH * len(flow) + 96,
        height=TOP + 34 + ROW_HEIGHT * len(keys),
    )
