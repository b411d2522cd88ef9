"""The columns of a dataset row that reach the rewards, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["json_columns", "json_value"]


def json_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row with their values as ``json_value`` returns them."""
    return {str(name): json_value(value) for name, value in columns.items()}


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it.

    Text, numbers, bools and None stay; mappings become dicts with text keys; lists, tuples and arrays become
    lists, sets sorted lists; everything else (dates, bytes, images) becomes its ``str``.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return json_columns(value)
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    if isinstance(value, (set, frozenset)):  # Their order differs between processes.
        return sorted((json_value(each) for each in value), key=repr)
    if hasattr(value, "tolist"):  # Arrays and scalars of numpy and torch.
        return json_value(value.tolist())
    return str(value)
