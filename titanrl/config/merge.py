"""Merging of experiment files: base files, dropped keys, ``--set``; with the origin of each key."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any

import tomli

from titanrl.errors import ConfigError, Problem, did_you_mean

__all__ = ["Layers", "parse_value"]

Path = tuple[str, ...]


class Layers:
    """A table made of several files, later ones over earlier ones.

    Tables merge key by key, anything else is replaced, arrays of tables as a whole. A table that changes
    ``name`` drops the other keys that it had, because they belong to another component.

    Args:
        plain: dotted paths of tables whose ``name`` decides over no other key, so that it may change freely.
    """

    def __init__(self, plain: Collection[str] = ()) -> None:
        self.table: dict[str, Any] = {}
        self._plain = plain
        self._origins: dict[Path, str] = {}

    def add(self, table: Mapping[str, Any], origin: str) -> None:
        """Merges ``table`` over the present tables."""
        self._merge(self.table, table, (), origin)

    def merge(self, other: Layers) -> None:
        """Merges other layers over these; their keys keep their origins."""
        self._merge(self.table, other.table, (), "")
        self._origins |= other._origins

    def drop(self, dotted: str) -> None:
        """Removes a key or a table.

        Raises:
            ConfigError: it isn't there.
        """
        *parents, last = dotted.split(".")
        parent = self._descend(parents, dotted, create=False)
        if isinstance(parent, list):
            del parent[self._index(parent, last, dotted)]
            return
        if last not in parent:
            raise ConfigError(
                Problem("", f"is not there to be dropped{did_you_mean(last, parent) or '.'}", dotted)
            )
        del parent[last]

    def set(self, assignment: str) -> None:
        """Applies one ``--set`` argument, ``a.b.c=value``; an empty value drops the key.

        Raises:
            ConfigError: no ``=``, or the path leads through something that is no table.
        """
        dotted, equals, text = assignment.partition("=")
        dotted = dotted.strip()
        if not equals or not all(dotted.split(".")):
            raise ConfigError(Problem("", f"must look like a.b.c=value, got {assignment!r}.", "--set"))
        if not text.strip():
            self.drop(dotted)
            return
        value = parse_value(text.strip())
        *parents, last = dotted.split(".")
        parent = self._descend(parents, dotted, create=True)
        if isinstance(parent, list):
            parent[self._index(parent, last, dotted)] = value
            self._origins[tuple(dotted.split("."))] = "--set"
        else:
            self._merge(parent, {last: value}, tuple(parents), "--set")

    def origin(self, dotted: str) -> str:
        """Returns the origin of a key, or of the nearest table around it: a file, or ``--set``."""
        path = tuple(dotted.split("."))
        while path:
            if path in self._origins:
                return self._origins[path]
            path = path[:-1]
        return ""

    def _merge(self, under: dict[str, Any], over: Mapping[str, Any], path: Path, origin: str) -> None:
        renamed = "name" in over and "name" in under and over["name"] != under["name"]
        if renamed and ".".join(path) not in self._plain:
            under.clear()
            self._forget(path)
            self._note(path, origin)
        for key, value in over.items():
            here = (*path, key)
            if isinstance(value, Mapping):
                if not isinstance(under.get(key), dict):
                    under[key] = {}
                    self._note(here, origin)
                self._merge(under[key], value, here, origin)
            else:
                under[key] = copy.deepcopy(value)
                self._note(here, origin)

    def _note(self, path: Path, origin: str) -> None:
        if origin:
            self._forget(path)
            self._origins[path] = origin

    def _forget(self, path: Path) -> None:
        """Forgets the origins of a table and its keys."""
        self._origins = {known: by for known, by in self._origins.items() if known[: len(path)] != path}

    def _descend(self, parents: list[str], dotted: str, *, create: bool) -> dict[str, Any] | list[Any]:
        at: Any = self.table
        for depth, part in enumerate(parents):
            if isinstance(at, list):
                at = at[self._index(at, part, dotted)]
            elif create:
                at = at.setdefault(part, {})
            else:
                at = at.get(part, {})
            if not isinstance(at, dict | list):
                where = ".".join(parents[: depth + 1])
                raise ConfigError(
                    Problem("", f"leads through {where}, which is {at!r} and no table.", dotted)
                )
        return at  # type: ignore[no-any-return]

    def _index(self, array: list[Any], part: str, dotted: str) -> int:
        if not part.isdecimal() or int(part) >= len(array):
            have = f"0 to {len(array) - 1}" if array else "none"
            raise ConfigError(
                Problem("", f"must name an entry of the array, got {part!r}; there are {have}.", dotted)
            )
        return int(part)


def parse_value(text: str) -> Any:
    """Returns a command-line value: what TOML makes of it, Python's True and False, else the text itself."""
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text)  # TOML wants a digit on both sides of the point, fingers don't.
    try:
        table = tomli.loads(f"value = {text}")
        return table["value"] if len(table) == 1 else text
    except tomli.TOMLDecodeError:
        if text[0] in "[{\"'":
            raise ConfigError(
                Problem("", f"must be a TOML value, got {text!r}; close what it opens.", "--set")
            ) from None
        return text
