"""The JSON Schema of experiment files, for editors: every table, key and registered component."""

from __future__ import annotations

import inspect
import math
import typing
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

from pydantic import TypeAdapter

from titanrl.config.docs import key_docs
from titanrl.config.dump import to_table
from titanrl.config.experiment import Experiment
from titanrl.decode import Component, Extended, element, settable
from titanrl.registry import component_class, names

__all__ = ["file_schema"]

Schema = dict[str, Any]


def file_schema() -> Schema:
    """Returns the schema of an experiment file; no table is required, as a base file may hold it."""
    schema = _table(Experiment)
    strings = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    schema["properties"]["base"] = {**strings, "description": "Files to build on, relative to this one."}
    schema["properties"]["imports"] |= strings
    schema["properties"]["drop"] = {
        **strings,
        "description": "Keys or tables of the base files to leave out.",
    }
    del schema["required"]  # A file with a base may leave out any table.
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "titanrl experiment",
        "description": inspect.cleandoc(Experiment.__doc__ or "").partition("\n")[0],
        **schema,
    }


def _of(hint: Any) -> Schema:
    plain, marker = element(hint)
    if isinstance(marker, Component):
        return {"oneOf": [_component(marker.kind, name) for name in names(marker.kind)]}
    if isinstance(marker, Extended):
        outer = _table(plain, without=marker.field)
        options = []
        for name in names(marker.kind):
            option = _component(marker.kind, name)
            option["properties"] = {**outer["properties"], **option["properties"]}
            options.append(option)
        return {"oneOf": options}
    args = typing.get_args(plain)
    if typing.get_origin(plain) is tuple and element(args[0])[1] is not None:
        return {"type": "array", "items": _of(args[0])}
    if is_dataclass(plain):
        return _table(typing.cast(type, plain))
    schema: Schema = TypeAdapter(plain).json_schema()
    return schema


def _component(kind: str, name: str) -> Schema:
    cls = component_class(kind, name)
    schema = _table(cls)
    schema["properties"] = {"name": {"const": name}, **schema["properties"]}
    schema["required"] = ["name", *schema["required"]]
    schema["title"] = f"{kind} {name}"
    return schema


def _table(cls: type, without: str = "") -> Schema:
    docs, properties, required = key_docs(cls), {}, []
    for key, (field, hint) in settable(cls).items():
        if key == without:
            continue
        properties[key] = {
            **_of(hint),
            **({"description": docs[key]} if key in docs else {}),
            **_default(field),
        }
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(key)
    return {
        "type": "object",
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _default(field: Field[Any]) -> Schema:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    value = to_table(value)
    if value is MISSING or value is None or isinstance(value, dict):
        return {}
    if isinstance(value, float) and math.isinf(value):
        return {}  # JSON has no infinity.
    return {"default": value}
