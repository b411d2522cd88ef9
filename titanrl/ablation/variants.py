"""Variants of an ablation as overrides: ``[vary]``, a grid of values, or ``[[variant]]``, named changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from titanrl.config.dump import inline
from titanrl.errors import ConfigError, Problem
from titanrl.registry.values import format_value

__all__ = ["Variant", "variants"]

RESERVED = "run"
"""Table that variants must not change: the ablation sets the names and seeds of runs."""


class Variant(NamedTuple):
    """One of the compared settings."""

    name: str
    overrides: tuple[str, ...]
    """``a.b.c=value`` each, with TOML values; an empty value removes the key."""

    @property
    def folder_name(self) -> str:
        """The name with characters replaced that are special to shells or file systems."""
        return re.sub(r"[^\w.=+-]+", "_", self.name).strip("_")


def variants(vary: Any, named: Any) -> tuple[Variant, ...]:
    """Return the variants that ``vary`` or ``variant`` of a file describes, in the order of the file.

    Args:
        vary: dotted keys or nested tables -> array of values, one variant for each combination.
        named: array of tables, each with a ``name``, optionally ``drop``, and tables of an experiment file.

    Raises:
        ConfigError: both or neither are given, or one is malformed.
    """
    if (vary is None) == (named is None):
        got = "neither" if vary is None else "both"
        raise ConfigError(f"[vary] or [[variant]] must define the variants, got {got}; give exactly one.")
    parsed = _grid(vary) if vary is not None else _named(named)
    if len(parsed) < 2:
        raise ConfigError(Problem("", f"must define at least 2 variants, got {len(parsed)}.", _key(vary)))
    problems = []
    folders: dict[str, Variant] = {}
    for each in parsed:
        first = folders.setdefault(each.folder_name, each)
        if not each.folder_name or first is not each:
            text = f"must have names that differ in letters or digits, got {first.name!r} and {each.name!r}."
            problems.append(Problem("", text, _key(vary)))
        for key in sorted({text.partition("=")[0] for text in each.overrides}):
            if key.partition(".")[0] == RESERVED:
                text = f"must not be varied, got {key!r} in {each.name!r}; the ablation names and seeds runs."
                problems.append(Problem("", text, RESERVED))
    if problems:
        raise ConfigError(problems)
    return parsed


def _key(vary: Any) -> str:
    return "variant" if vary is None else "vary"


def _grid(vary: Any) -> tuple[Variant, ...]:
    if not isinstance(vary, Mapping):
        raise ConfigError(
            Problem("", f"must be a table of keys with arrays of values, got {format_value(vary)}.", "vary")
        )
    axes = dict(_axes(vary, ()))
    # A key with a single value is the same in all variants, so names leave it out.
    varying = [key for key, values in axes.items() if len(values) > 1]
    last = [key.rpartition(".")[2] for key in varying]
    labels = {key: key if last.count(end) > 1 else end for key, end in zip(varying, last, strict=True)}
    variants = []
    for values in itertools.product(*axes.values()):
        assigned = dict(zip(axes, values, strict=True))
        name = ",".join(f"{label}={_label(assigned[key])}" for key, label in labels.items())
        variants.append(Variant(name, tuple(f"{key}={inline(value)}" for key, value in assigned.items())))
    return tuple(variants)


def _axes(table: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the dotted key and the values of each varied key."""
    for key, value in table.items():
        path = (*parents, key)
        if isinstance(value, Mapping):
            yield from _axes(value, path)
        elif isinstance(value, list) and value:
            yield ".".join(path), value
        else:
            text = f"must be an array of values, got {format_value(value)}; enclose the values in [ ]."
            raise ConfigError(Problem("vary", text, ".".join(path)))


def _named(named: Any) -> tuple[Variant, ...]:
    if not isinstance(named, list) or not all(isinstance(each, Mapping) for each in named):
        raise ConfigError(Problem("", "must be an array of tables; write [[variant]].", "variant"))
    variants = []
    for index, each in enumerate(named):
        name, drop = each.get("name"), each.get("drop", [])
        if not isinstance(name, str):
            raise ConfigError(
                Problem(f"variant.{index}", f"must be a string, got {format_value(name)}.", "name")
            )
        if not isinstance(drop, list) or not all(isinstance(key, str) for key in drop):
            text = f"must be an array of keys to remove, got {format_value(drop)}."
            raise ConfigError(Problem(f"variant.{index}", text, "drop"))
        rest = {key: value for key, value in each.items() if key not in ("name", "drop")}
        assigned = [f"{key}={inline(value)}" for key, value in _assignments(rest, ())]
        variants.append(Variant(name, (*(f"{key}=" for key in drop), *assigned)))
    return tuple(variants)


def _assignments(table: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each change; a component's table is a single value."""
    for key, value in table.items():
        path = (*parents, key)
        if isinstance(value, Mapping) and value and "name" not in value:
            yield from _assignments(value, path)
        else:
            yield ".".join(path), value


def _label(value: Any) -> str:
    """Return a value as text for the names of variants; a component is its name and keys."""
    if isinstance(value, Mapping) and "name" in value:
        rest = ",".join(f"{key}={_label(each)}" for key, each in value.items() if key != "name")
        return f"{value['name']}({rest})" if rest else str(value["name"])
    return value if isinstance(value, str) else inline(value)
