"""docs/config.md from the sources: all tables of an experiment file with their keys."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from titanrl.config.experiment import Experiment
from titanrl.registry.decode import Component, Flattened, fields_of, unwrap_optional
from titanrl.registry.docs import allowed, default_of, key_docs

__all__ = ["config_page"]

PAGE = """<!-- Written by `make docs` from the sources of titanrl/config. Edit those, not this page. -->

# Tables of an experiment file

This page lists all tables and keys; unknown ones are errors. A table that names a component also takes the
keys of that component, which are on the component's page. [Experiment files](experiment-files.md) explains
how files combine. `titanrl show --schema` prints the JSON Schema."""

COMPONENT_NOTE = "`name` selects one of the [components of this kind](components/{kind}.md)."


def config_page() -> str:
    """Return the page."""
    blocks = [PAGE]
    for name, hint in _tables(Experiment, ""):
        blocks += _table(name, hint)
    return "\n\n".join(blocks) + "\n"


def _tables(cls: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield each table as written in a file, ``[loop]`` or ``[[reward]]``, and its marked type."""
    for key, (_, hint) in fields_of(cls).items():
        inner, is_array = _entry(hint)
        if not _is_table(inner):
            continue
        name = f"{prefix}{key}"
        yield (f"[[{name}]]" if is_array else f"[{name}]"), inner
        plain, marker = unwrap_optional(inner)
        if not isinstance(marker, Component):
            yield from _tables(plain, f"{name}.")


def _entry(hint: Any) -> tuple[Any, bool]:
    """Return the type of a field, or of its entries if it is an array, and whether it is an array."""
    plain, _ = unwrap_optional(hint)
    is_array = typing.get_origin(plain) is tuple and bool(typing.get_args(plain))
    return (typing.get_args(plain)[0], True) if is_array else (hint, False)


def _is_table(hint: Any) -> bool:
    plain, marker = unwrap_optional(hint)
    return marker is not None or is_dataclass(plain)


def _table(name: str, hint: Any) -> list[str]:
    """Return the heading, the description and the keys of a table."""
    inner, marker = unwrap_optional(hint)
    blocks = [f"## `{name}`"]
    if isinstance(marker, Component):
        return [*blocks, COMPONENT_NOTE.format(kind=marker.kind)]
    doc = inspect.cleandoc(inner.__doc__ or "").partition("\n\n")[0]
    blocks.append(_cell(doc))
    if isinstance(marker, Flattened):
        blocks.append(COMPONENT_NOTE.format(kind=marker.kind))
    docs = key_docs(inner)
    rows = []
    for key, (field, each) in fields_of(inner).items():
        if _is_table(_entry(each)[0]):
            continue
        default = default_of(field)
        default = default if default in ("required", "off") else f"`{default}`"
        cells = (f"`{key}`", default, allowed(each), docs.get(key, ""))
        rows.append(f"| {' | '.join(_cell(cell).replace('|', chr(92) + '|') for cell in cells)} |")
    if rows:
        blocks.append("\n".join(["| key | default | allowed | meaning |", "|---|---|---|---|", *rows]))
    return blocks


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("<", "&lt;").split())
