"""An Experiment -> plain TOML values that give the same experiment when they are read again."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import tomli_w

from titanrl.registry import name_of
from titanrl.registry.decode import Component, Flattened, fields_of, unwrap_optional

__all__ = ["difference", "dumps", "inline", "to_table"]

SHOWN = 5
"""Keys that a difference names; the others it counts."""


def to_table(value: Any) -> Any:
    """Returns a decoded table with every key, defaults too; None is left out, as TOML has no null."""
    if isinstance(value, tuple | list):
        return [to_table(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    table: dict[str, Any] = {}
    left_out = getattr(value, "derived", ())
    for key, (_, hint) in fields_of(type(value)).items():
        held = getattr(value, key)
        if held is None or key in left_out:
            continue
        plain, marker = unwrap_optional(hint)
        item = typing.get_args(plain)
        many = typing.get_origin(plain) is tuple and bool(item)
        if many:
            _, marker = unwrap_optional(item[0])
            table[key] = [_marked(each, marker) for each in held]
        else:
            table[key] = _marked(held, marker)
    return table


def _marked(value: Any, marker: Component | Flattened | None) -> Any:
    if isinstance(marker, Component):
        return {"name": name_of(value), **to_table(value)}
    if isinstance(marker, Flattened):
        inner = getattr(value, marker.field)
        outer = to_table(value)
        del outer[marker.field]
        return {**outer, "name": name_of(inner), **to_table(inner)}
    return to_table(value)


def dumps(value: Any) -> str:
    """Returns the resolved file as TOML text."""
    return tomli_w.dumps(to_table(value), multiline_strings=False)


def inline(value: Any) -> str:
    """Returns a plain value as TOML on one line, tables in braces, as ``--set`` reads it again."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_bare(key)} = {inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)


def difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """Returns the dotted keys in which two tables of plain values differ, as messages name them; "" if none.

    An array counts as one value.
    """
    keys = _differing(left, right)
    more = len(keys) - SHOWN
    return ", ".join(keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _differing(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    differing = []
    for key in dict.fromkeys([*left, *right]):
        one, other = left.get(key), right.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            differing += [f"{key}.{inner}" for inner in _differing(one, other)]
        elif one != other:
            differing.append(key)
    return differing
