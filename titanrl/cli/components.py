"""``titanrl components``: the catalogue, and one component's formula, keys and source."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from titanrl.config.docs import default_of, first_line, key_docs, type_name
from titanrl.decode import settable
from titanrl.errors import ConfigError
from titanrl.lazy import lazy_torch
from titanrl.registry import component_class, kinds, names
from titanrl.schema import key_name

__all__ = ["components"]


def components(
    kind: Annotated[str | None, typer.Argument(help="Kind of component.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Argument(help="One component of that kind.", show_default=False)
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Module or .py file with components of yours."),
    ] = None,
) -> None:
    """List the registered components, or show one: formula, keys, what it reads, source."""
    lazy_torch()
    if imports:
        from titanrl.config.imports import import_all

        import_all(imports)
    console = Console(highlight=False)
    if kind is not None and name is not None:
        _one(console, kind, component_class(kind, name), name)
        return
    for each in [kind] if kind is not None else kinds():
        table = Table("name", "returns", title=each, title_justify="left", box=None, padding=(0, 2))
        for known in names(each):
            table.add_row(known, first_line(component_class(each, known)))
        console.print(table)
        console.print()


def _one(console: Console, kind: str, cls: type, name: str) -> None:
    console.print(f"[bold]{kind} {name}[/bold]\n")
    console.print(inspect.cleandoc(cls.__doc__ or ""), markup=False, soft_wrap=True)
    table = Table("key", "type", "default", "meaning", title="Keys", title_justify="left")
    docs = key_docs(cls)
    for key, (field, hint) in settable(cls).items():
        table.add_row(key, type_name(hint), default_of(field), docs.get(key, ""))
    console.print()
    console.print(table if settable(cls) else "No keys.")
    console.print(f"Reads: {_reads(cls)}")
    if needs := getattr(cls, "needs", ()):
        console.print(f"Needs of the head: {', '.join(needs)}")
    console.print(f"Source file: {inspect.getsourcefile(cls)}")


def _reads(cls: Any) -> str:
    """Returns the batch keys that the component reads, with its default settings where they decide."""
    keys = getattr(cls, "in_keys", ())
    if isinstance(keys, property):
        try:
            keys = cls().in_keys
        except (TypeError, ValueError, ConfigError):
            return "depends on its keys"
    return ", ".join(key_name(key) for key in keys) or "nothing but its arguments"
