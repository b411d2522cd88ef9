"""What varies, as ``--set`` arguments: ``[vary]``, a grid of values, or ``[[variant]]``, named changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from titanrl.config.dump import inline
from titanrl.errors import ConfigError, Problem
from titanrl.registry.values import format_value

__all__ = ["Variant", "variants"]

OWN = "run"
"""Table that belongs to the ablation: it names the runs and gives them their seeds."""


class Variant(NamedTuple):
    """One of the things compared."""

    name: str
    overrides: tuple[str, ...]
    """``a.b.c=value`` each, with TOML values; an empty value drops the key."""

    @property
    def folder_name(self) -> str:
        """The name with what a shell or a file system minds replaced."""
        return re.sub(r"[^\w.=+-]+", "_", self.name).strip("_")


def variants(vary: Any, named: Any) -> tuple[Variant, ...]:
    """Returns the variants that a file's ``vary`` or ``variant`` describes, in its order.

    Args:
        vary: dotted keys or nested tables -> array of values, one variant for each combination.
        named: array of tables, each a ``name``, maybe ``drop``, and tables as an experiment file has them.

    Raises:
        ConfigError: both or neither are given, or one is not as said.
    """
    if (vary is None) == (named is None):
        got = "neither" if vary is None else "both"
        raise ConfigError(f"[vary] or [[variant]] must say what varies, got {got}; give one.")
    found = _grid(vary) if vary is not None else _named(named)
    if len(found) < 2:
        raise ConfigError(Problem("", f"must give at least 2 variants, got {len(found)}.", _key(vary)))
    problems = []
    folders: dict[str, Variant] = {}
    for each in found:
        first = folders.setdefault(each.folder_name, each)
        if not each.folder_name or first is not each:
            text = f"must have names that differ in letters or digits, got {first.name!r} and {each.name!r}."
            problems.append(Problem("", text, _key(vary)))
        for key in sorted({text.partition("=")[0] for text in each.overrides}):
            if key.partition(".")[0] == OWN:
                text = f"must not be varied, got {key!r} in {each.name!r}; the ablation names and seeds runs."
                problems.append(Problem("", text, OWN))
    if problems:
        raise ConfigError(problems)
    return found


def _key(vary: Any) -> str:
    return "variant" if vary is None else "vary"


def _grid(vary: Any) -> tuple[Variant, ...]:
    if not isinstance(vary, Mapping):
        raise ConfigError(
            Problem("", f"must be a table of keys with arrays, got {format_value(vary)}.", "vary")
        )
    axes = dict(_axes(vary, ()))
    # An axis of one value sets the same for all, so no name needs it.
    named = [key for key, values in axes.items() if len(values) > 1]
    last = [key.rpartition(".")[2] for key in named]
    labels = {key: key if last.count(end) > 1 else end for key, end in zip(named, last, strict=True)}
    found = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        name = ",".join(f"{label}={_label(chosen[key])}" for key, label in labels.items())
        found.append(Variant(name, tuple(f"{key}={inline(value)}" for key, value in chosen.items())))
    return tuple(found)


def _axes(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
    for key, value in table.items():
        here = (*above, key)
        if isinstance(value, Mapping):
            yield from _axes(value, here)
        elif isinstance(value, list) and value:
            yield ".".join(here), value
        else:
            text = f"must be an array of the values to try, got {format_value(value)}; write [ ] around them."
            raise ConfigError(Problem("vary", text, ".".join(here)))


def _named(named: Any) -> tuple[Variant, ...]:
    if not isinstance(named, list) or not all(isinstance(each, Mapping) for each in named):
        raise ConfigError(Problem("", "must be an array of tables; write [[variant]].", "variant"))
    found = []
    for index, each in enumerate(named):
        name, drop = each.get("name"), each.get("drop", [])
        if not isinstance(name, str):
            raise ConfigError(
                Problem(f"variant.{index}", f"must be a string, got {format_value(name)}.", "name")
            )
        if not isinstance(drop, list) or not all(isinstance(key, str) for key in drop):
            text = f"must be an array of keys to leave out, got {format_value(drop)}."
            raise ConfigError(Problem(f"variant.{index}", text, "drop"))
        rest = {key: value for key, value in each.items() if key not in ("name", "drop")}
        assigned = [f"{key}={inline(value)}" for key, value in _assignments(rest, ())]
        found.append(Variant(name, (*(f"{key}=" for key in drop), *assigned)))
    return tuple(found)


def _assignments(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yields the dotted key and value of each change; a component's table, which has a name, is one."""
    for key, value in table.items():
        here = (*above, key)
        if isinstance(value, Mapping) and value and "name" not in value:
            yield from _assignments(value, here)
        else:
            yield ".".join(here), value


def _label(value: Any) -> str:
    """Returns a value as the names of variants show it: a component by its name and keys."""
    if isinstance(value, Mapping) and "name" in value:
        rest = ",".join(f"{key}={_label(each)}" for key, each in value.items() if key != "name")
        return f"{value['name']}({rest})" if rest else str(value["name"])
    return value if isinstance(value, str) else inline(value)
