"""Decoding of a single TOML value: pydantic validates it, and this module words the errors."""

from __future__ import annotations

import json
import math
import typing
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from titanrl.errors import ConfigError, Problem, did_you_mean, edit_distance_one
from titanrl.registry.foreign_names import KEYS

__all__ = ["decode_scalar", "format_value", "is_of_type", "path_fault", "unknown_keys"]

PATH_KEYS = ("cache", "folder", "key_file", "output", "path")
"""Keys whose texts are paths, or ids of a hub, in every table."""
MAX_PATH, MAX_NAME = 4095, 255
EXPECTED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "list_type": "an array",
    "string_type": "a string",
    "tuple_type": "an array",
}
"""Pydantic's error types in the words of TOML."""


def decode_scalar(hint: Any, value: Any) -> Any:
    """Returns ``value`` as the type ``hint``, which holds no table; only integers turn into floats.

    Raises:
        ConfigError: wrong type, option or a value that TOML has and an experiment hasn't (nan, dates).
    """
    if value in ("inf", "-inf") and (hint is float or float in typing.get_args(hint)):
        value = float(value)  # JSON has no infinity, so tables that came through it spell it as text.
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(Problem("", "must be a number, got nan."))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(Problem("", f"must be a 64-bit integer, got {value}."))
    if isinstance(value, str) and ("\0" in value or _has_surrogate(value)):
        raise ConfigError(Problem("", f"must be text without NUL or unpaired surrogates, got {value!a}."))
    try:
        # JSON mode: arrays may fill tuples, while a bool is no number and a number no string.
        return _adapter(hint).validate_json(json.dumps(value))
    except TypeError:
        raise ConfigError(Problem("", f"must not be a date or time, got {value}; use a string.")) from None
    except ValidationError as error:
        raise ConfigError([_worded(dict(item)) for item in error.errors(include_url=False)]) from None


def path_fault(text: str) -> str:
    """Returns why a text cannot be the path of a file, or an empty string."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        return "must not have control characters"
    is_long = len(text.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in text.split("/"))
    return f"must have {MAX_PATH} bytes at most, and {MAX_NAME} a name" if is_long else ""


def is_of_type(hint: Any, value: Any) -> bool:
    """Whether a Python value is of the type ``hint``, without any conversion."""
    try:
        _adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def format_value(value: Any) -> str:
    """Returns a value as messages show it, near to how TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return "an array of tables"
    return repr(value)


def unknown_keys(
    table: Mapping[str, Any],
    known: Iterable[str],
    owner: str = "",
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> list[Problem]:
    """Returns a Problem for each key of ``table`` that is not ``known``, and for each renamed value.

    Args:
        table: the table as TOML gives it.
        known: keys that the table may have.
        owner: the component whose table it is, such as `` of loss 'gspo'``; empty for other tables.
        renamed: old key -> new key, and ``key=old value`` -> new value.
    """
    known = list(dict.fromkeys(known))
    listed = f"keys: {', '.join(known) or 'none'}."
    problems = []
    for key, value in table.items():
        got = format_value(value)
        if key in known:
            problems += [
                Problem("", f"= {each!r} was renamed to {renamed[f'{key}={each}']!r}.", key)
                for each in (value if isinstance(value, list) else [value])
                if f"{key}={each}" in renamed
            ]
        elif key in renamed:
            problems.append(Problem("", f"was renamed to {renamed[key]!r}, got {got}.", key))
        else:
            is_slip = any(edit_distance_one(key, each) for each in known)
            is_foreign = key in KEYS and not is_slip
            meant = f"; did you mean {KEYS[key]}?" if is_foreign else did_you_mean(key, known)
            problems.append(Problem("", f"is not a key{owner}, got {got}{meant or ';'} {listed}", key))
    return problems


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def _worded(item: dict[str, Any]) -> Problem:
    got = item["input"]
    if item["type"] == "literal_error":
        allowed = str(item["ctx"]["expected"])
        words = [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")]
        return Problem(
            "", f"must be {allowed}, got {format_value(got)}{did_you_mean(str(got), words) or '.'}"
        )
    plain = item["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return Problem("", f"must be {EXPECTED.get(item['type'], plain)}, got {format_value(got)}.")
