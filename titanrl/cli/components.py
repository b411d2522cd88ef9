"""``titanrl components``: list the registered components, or describe one."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from titanrl.registry import component_class, declares, kinds, names
from titanrl.registry.decode import fields_of
from titanrl.registry.docs import allowed, declarations, default_of, first_line, key_docs, reads
from titanrl.runtime.lazy import lazy_torch

__all__ = ["components"]


def components(
    kind: Annotated[str | None, typer.Argument(help="Kind of component.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Argument(help="Name of one component of that kind.", show_default=False)
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Module or .py file with your own components."),
    ] = None,
) -> None:
    """List the registered components, or describe one: formula, keys, batch keys that it reads, source."""
    lazy_torch()
    if imports:
        from titanrl.config.imports import import_all

        import_all(imports)
    console = Console(highlight=False)
    if kind is not None and name is not None:
        _describe(console, kind, component_class(kind, name), name)
        return
    for each in [kind] if kind is not None else kinds():
        table = Table("name", "description", title=each, title_justify="left", box=None, padding=(0, 2))
        for registered in names(each):
            table.add_row(registered, escape(first_line(component_class(each, registered))))
        console.print(table)
        console.print()


def _describe(console: Console, kind: str, cls: type, name: str) -> None:
    console.print(f"[bold]{kind} {name}[/bold]\n")
    console.print(inspect.cleandoc(cls.__doc__ or ""), markup=False, soft_wrap=True)
    table = Table("key", "default", "allowed", "meaning", title="Keys", title_justify="left")
    docs = key_docs(cls)
    for key, (field, hint) in fields_of(cls).items():
        cells = (key, default_of(field), allowed(hint), docs.get(key, ""))
        table.add_row(*(escape(cell) for cell in cells))
    console.print()
    console.print(table if fields_of(cls) else "No keys.")
    if declares(cls, "in_keys"):
        console.print(f"Reads: {reads(cls)}")
    for key, value in declarations(kind, cls).items():
        console.print(f"Declares {key}: {value}", markup=False)
    console.print(f"Source file: {inspect.getsourcefile(cls)}")
