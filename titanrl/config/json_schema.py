"""The JSON Schema of experiment files, for editors: every table, key and registered component."""

from __future__ import annotations

import inspect
import math
import typing
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

from pydantic import TypeAdapter

from titanrl.config.dump import to_table
from titanrl.config.experiment import Experiment
from titanrl.registry import component_class, names
from titanrl.registry.decode import Flattened, fields_of, unwrap_optional
from titanrl.registry.docs import key_docs
from titanrl.registry.ranges import Range, range_of

__all__ = ["file_schema"]

Schema = dict[str, Any]


def file_schema() -> Schema:
    """Returns the schema of an experiment file.

    Nothing but a component's name is required, because a base file may hold it; a component's table may
    leave even that to its base.
    """
    schema = _table(Experiment)
    strings = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    imports = schema["properties"].pop("imports")["description"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "titanrl experiment",
        **schema,
        "properties": {
            "base": {**strings, "description": "Files to build on, relative to this one."},
            "drop": {**strings, "description": "Keys or tables of the base files to leave out."},
            "imports": {**strings, "description": imports},
            **schema["properties"],
        },
    }


def _of(hint: Any, *, whole: bool = False) -> Schema:
    """Returns the schema of a value.

    Args:
        hint: its type.
        whole: whether a component's table is complete, without keys of a base file.
    """
    plain, marker = unwrap_optional(hint)
    if marker is not None:
        own = _table(plain, without=marker.field)["properties"] if isinstance(marker, Flattened) else {}
        options = [_component(marker.kind, name, own) for name in names(marker.kind)]
        if not whole:
            over = "keys merged over the component that the base file names"
            options.append({"title": over, "type": "object", "not": {"required": ["name"]}})
        return {"oneOf": options}
    args = typing.get_args(plain)
    if typing.get_origin(plain) is tuple and unwrap_optional(args[0])[1] is not None:
        return {"type": "array", "items": _of(args[0], whole=True)}
    if is_dataclass(plain):
        return _table(typing.cast(type, plain))
    schema: Schema = TypeAdapter(plain).json_schema()
    return schema


def _component(kind: str, name: str, own: Schema) -> Schema:
    """Returns the schema of one component's table; ``own``: further keys of that table."""
    schema = _table(component_class(kind, name))
    schema["properties"] = {"name": {"const": name}, **own, **schema["properties"]}
    return {"title": f"{kind} {name}", **schema, "required": ["name"]}


def _table(cls: type, without: str = "") -> Schema:
    docs, properties = key_docs(cls), {}
    for key, (field, hint) in fields_of(cls).items():
        if key != without:
            has_default = field.default is not MISSING or field.default_factory is not MISSING
            text = " ".join(filter(None, (docs.get(key, ""), "" if has_default else "Required.")))
            schema = _of(hint)
            _bound(schema, range_of(hint))
            properties[key] = {**schema, **({"description": text} if text else {}), **_default(field)}
    return {
        "type": "object",
        "description": inspect.cleandoc(cls.__doc__ or "").partition("\n\nRaises:")[0],
        "properties": properties,
        "additionalProperties": False,
    }


def _bound(schema: Schema, declared: Range | None) -> None:
    """Adds the bounds of a field's range to the schema of its numbers, those in an array or table too."""
    if declared is None:
        return
    if schema.get("type") in ("number", "integer"):
        schema.update(declared.json_schema())
    inner = [schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())]
    for each in inner:
        if isinstance(each, dict):
            _bound(each, declared)


def _default(field: Field[Any]) -> Schema:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    value = to_table(value)
    if value is MISSING or value is None or isinstance(value, dict):
        return {}
    if isinstance(value, float) and math.isinf(value):
        return {}  # JSON has no infinity.
    return {"default": value}
