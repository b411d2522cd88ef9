"""Documentation of a dataclass as text: its keys with their docstrings, types, ranges and defaults."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from titanrl.protocols.batch import key_name
from titanrl.registry.declarations import DECLARATIONS, declared, declares
from titanrl.registry.decode import unwrap_optional
from titanrl.registry.ranges import range_of

__all__ = [
    "allowed",
    "default_of",
    "first_line",
    "key_docs",
    "declarations",
    "reads",
    "type_name",
]


def key_docs(cls: type) -> dict[str, str]:
    """Returns the docstring under each field of a dataclass, base classes included; {} without source."""
    return {key: text for node in _sources(cls) for key, text in _docs_of(node)}


def first_line(cls: type, *, keep_code: bool = False) -> str:
    """Returns the first sentence of a class's docstring, without code marks by default."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")
    return sentence if keep_code else sentence.replace("`", "")


def type_name(hint: Any) -> str:
    """Returns a field's type in the words of a TOML author."""
    plain, marker = unwrap_optional(hint)
    if marker is not None:
        return f"table: {marker.kind}"
    origin, args = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Literal:
        return " | ".join(f'"{option}"' if isinstance(option, str) else str(option) for option in args)
    if origin in (tuple, list):
        return f"array of {type_name(args[0])}"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(option) for option in args if option is not type(None))
    words = {bool: "true | false", float: "number", int: "integer", str: "string", dict: "table"}
    return words.get(origin or plain, getattr(plain, "__name__", str(plain)))


def allowed(hint: Any) -> str:
    """Returns the values that a key may have: its type, and its range if it has one."""
    declared_range = range_of(hint)
    return type_name(hint) + (f" in {declared_range}" if declared_range is not None else "")


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
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return re.sub(r"e-0(\d)", r"e-\1", str(value))


def reads(cls: Any) -> str:
    """Returns the batch keys that a component reads; those of its default settings where they decide."""
    keys = _declared(cls, "in_keys")
    if keys is None:
        return "what its keys name"
    note = " (its keys may change that)" if isinstance(declared(cls, "in_keys"), property) else ""
    if optional := _declared(cls, "optional_keys"):
        note += f"; where the batch has them {', '.join(map(key_name, optional))}"
    return (", ".join(map(key_name, keys)) or "loss_mask alone") + note


def declarations(kind: str, cls: Any) -> dict[str, str]:
    """Returns the declarations of a class except the keys that it reads: name -> value, as text.

    The value of a property is that of the default settings, if the class has defaults.
    """
    values = {}
    for name in DECLARATIONS[kind]:
        if name in ("in_keys", "optional_keys", "renamed") or not declares(cls, name):
            continue
        note = " (its keys may change that)" if isinstance(getattr(cls, name), property) else ""
        values[name] = (_value_text(_declared(cls, name)) + note).strip()
    return values


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {each}" for key, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(key_name, value)) or "none"
    return str(value)


def _declared(cls: Any, name: str) -> Any:
    """Returns the declaration of a class or of its default settings; None if it has required keys."""
    value = declared(cls, name)
    if not isinstance(value, property):
        return value
    try:
        return declared(cls(), name)
    except (TypeError, ValueError):
        return None


def _sources(cls: type) -> Iterator[ast.ClassDef]:
    """Yields the source of each base class, then of the class, if source exists."""
    for each in reversed(cls.__mro__):
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if (
            file is not None
            and Path(file).suffix == ".py"
            and each.__qualname__ in (classes := _classes(file))
        ):
            yield classes[each.__qualname__]


@cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Returns qualified name -> source of every class of a file."""
    classes: dict[str, ast.ClassDef] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                classes[f"{prefix}{node.name}"] = node
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(Path(file).read_text("utf-8")).body, "")
    return classes


def _docs_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(node.body):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(inspect.cleandoc(text).split())
