"""Columns of a dataset row, also within its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["lookup"]


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a column, or of a key within it: `a.b` is ``row["a"]["b"]``; None: missing."""
    if key in row:
        return row[key]
    head, dot, rest = key.partition(".")
    inner = row.get(head)
    return lookup(inner, rest) if dot and isinstance(inner, Mapping) else None
