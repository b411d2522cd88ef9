"""What the source says of a dataclass's keys, as text: the docstring under each field, type, default."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
import typing
from dataclasses import MISSING, Field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from titanrl.decode import element

__all__ = ["default_of", "first_line", "key_docs", "type_name"]


def key_docs(cls: type) -> dict[str, str]:
    """Returns the docstring under each field of a dataclass, base classes included; {} without source."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if file is not None and Path(file).suffix == ".py":
            docs |= _file_docs(file).get(each.__qualname__, {})
    return docs


def first_line(cls: type) -> str:
    """Returns the first sentence of a class's docstring, without markup."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].replace("``", "").rstrip(".;")


def type_name(hint: Any) -> str:
    """Returns a field's type in the words of a TOML author."""
    plain, marker = element(hint)
    if marker is not None:
        return f"table: {marker.kind}"
    origin, args = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Literal:
        return " | ".join(f'"{option}"' if isinstance(option, str) else str(option) for option in args)
    if origin in (tuple, list):
        return f"array of {type_name(args[0])}"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(option) for option in args if option is not type(None))
    words = {bool: "true | false", float: "number", int: "integer", str: "string"}
    return words.get(plain, getattr(plain, "__name__", str(plain)))


def default_of(field: Field[Any]) -> str:
    """Returns a field's default as TOML would say it: ``required`` and ``off`` for those that have none."""
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is MISSING:
        return "required"
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return repr(list(value))
    return f'"{value}"' if isinstance(value, str) else f"{value}"


@cache
def _file_docs(file: str) -> dict[str, dict[str, str]]:
    """Returns qualified class name -> key -> docstring, for every class of a file."""
    found: dict[str, dict[str, str]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[f"{prefix}{node.name}"] = _class_docs(node)
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(Path(file).read_text("utf-8")).body, "")
    return found


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, after in pairwise(node.body):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(inspect.cleandoc(text).split())
    return docs
