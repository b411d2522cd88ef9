"""Plain tables -> dataclasses: pydantic does the work, the wording of mistakes is ours."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from titanrl.errors import ConfigError, Problem, suggest
from titanrl.registry import component_class, names

__all__ = ["build", "decode", "problems_of"]


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def build(kind: str, table: Mapping[str, Any]) -> Any:
    """Returns the component that a TOML table describes, e.g. ``build("loss", {"name": "gspo", "clip_low": 3e-4})``.

    Raises:
        ConfigError: unknown name or key, missing key, wrong type, value out of range; all mistakes at once.
    """
    keys = dict(table)
    name = keys.pop("name", None)
    if name is None:
        raise ConfigError(f"{kind} needs 'name', one of: {', '.join(names(kind))}.")
    cls = component_class(kind, name)
    try:
        return decode(cls, keys)
    except ConfigError as error:
        raise ConfigError(
            Problem(f"{kind} {name!r}" + (f" {problem.where}" if problem.where else ""), problem.message)
            for problem in error.problems
        ) from None


def decode(cls: type, table: Mapping[str, Any]) -> Any:
    """Returns ``cls`` filled from ``table``; key paths in the errors are relative to the table.

    Raises:
        ConfigError: with one Problem for each mistake.
    """
    try:
        # JSON mode: arrays may fill tuples, while bools stay no numbers and numbers no strings.
        return _adapter(cls).validate_json(json.dumps(table))
    except ValidationError as error:
        raise ConfigError(problems_of(error, cls)) from None


def problems_of(error: ValidationError, cls: type) -> list[Problem]:
    """Returns pydantic's findings in our words, one Problem each."""
    return [_problem(dict(item), cls) for item in error.errors(include_url=False)]


def _problem(item: dict[str, Any], cls: type) -> Problem:
    path = [str(part) for part in item["loc"]]
    where, got, kind = ".".join(path), item.get("input"), item["type"]
    fields = [field.name for field in dataclasses.fields(cls)] if len(path) <= 1 else []
    if kind == "unexpected_keyword_argument":
        return Problem(where, f"unknown key{suggest(path[-1], fields)} Keys: {', '.join(fields) or 'none'}.")
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Problem(where, "required key is missing; add it.")
    if kind == "literal_error":
        allowed = str(item["ctx"]["expected"])
        near = suggest(str(got), [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")])
        return Problem(where, f"must be {allowed}, got {got!r}{near}")
    if kind == "value_error":
        return Problem(where, str(item["ctx"]["error"]))
    return Problem(where, f"{item['msg'].lower().replace('input should', 'must')}, got {got!r}.")
