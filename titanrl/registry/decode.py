"""Decoding of plain tables into dataclasses and components; ``values`` decodes single values."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any

from titanrl.errors import ConfigError, Problem, closest_matches
from titanrl.registry import component_class, names
from titanrl.registry.catalog import unknown_name
from titanrl.registry.values import PATH_KEYS, decode_scalar, format_value, path_fault, unknown_keys

__all__ = [
    "Component",
    "Flattened",
    "build",
    "decode",
    "unwrap_optional",
    "decode_fields",
    "fields_of",
    "is_optional",
]


@dataclass(frozen=True, slots=True)
class Component:
    """Marks a field that holds a registered component: ``loss: Annotated[PolicyLoss, Component("loss")]``."""

    kind: str


@dataclass(frozen=True, slots=True)
class Flattened:
    """Marks a dataclass whose table is a component's table with keys of its own beside.

    The component goes into the dataclass's ``field``. A key that both know is the component's.
    """

    kind: str
    field: str = "component"


def build(kind: str, table: Mapping[str, Any]) -> Any:
    """Returns the component of a TOML table: ``build("loss", {"name": "gspo", "clip_low": 3e-4})``.

    Raises:
        ConfigError: unknown name or key, missing key, wrong type, value out of range; all mistakes at once.
    """
    label = f"{kind} {table['name']!r}" if "name" in table else kind
    try:
        return _component(kind, table)
    except ConfigError as error:
        raise ConfigError(
            Problem("", problem.message, ".".join(filter(None, (problem.where, problem.key))))
            if problem.key == "name"
            else Problem("", str(problem), label)
            for problem in error.problems
        ) from None


def decode(hint: Any, value: Any) -> Any:
    """Returns ``value``, as TOML gives it, as an instance of the type ``hint``.

    Paths in the errors are relative: a Problem without ``where`` and ``key`` speaks of the value itself.

    Raises:
        ConfigError: with one Problem for each mistake.
    """
    hint, marker = unwrap_optional(hint)
    if isinstance(marker, Component):
        return _component(marker.kind, value)
    if typing.get_origin(hint) is tuple and _is_table(item := typing.get_args(hint)[0]):
        if not isinstance(value, list):
            raise ConfigError(
                Problem("", f"must be an array of tables, got {format_value(value)}; use [[ ]].")
            )
        return tuple(decode_fields({str(i): (item, entry) for i, entry in enumerate(value)}).values())
    if isinstance(marker, Flattened):
        return _extended(hint, marker, value)
    if is_dataclass(hint):
        return _table(typing.cast(type, hint), _as_table(value), "")
    return decode_scalar(hint, value)


def unwrap_optional(hint: Any) -> tuple[Any, Component | Flattened | None]:
    """Returns a field's type without ``| None`` and annotations, and its marker, if it has one."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        options = [option for option in typing.get_args(hint) if option is not NoneType]
        if len(options) == 1:
            return unwrap_optional(options[0])
    if typing.get_origin(hint) is typing.Annotated:
        inner, *extras = typing.get_args(hint)
        plain, marker = unwrap_optional(inner)
        return plain, next((each for each in extras if isinstance(each, Component | Flattened)), marker)
    return hint, None


def is_optional(hint: Any) -> bool:
    """Whether a field's type allows None: the key may be left out and its option is off then."""
    if typing.get_origin(hint) is typing.Annotated:
        return is_optional(typing.get_args(hint)[0])
    return typing.get_origin(hint) in (typing.Union, UnionType) and NoneType in typing.get_args(hint)


@cache
def fields_of(cls: type) -> dict[str, tuple[Field[Any], Any]]:
    """Returns the keys of a dataclass's table: name -> (field, type)."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: (field, hints[field.name]) for field in fields(cls) if field.init}


def _is_table(hint: Any) -> bool:
    plain, marker = unwrap_optional(hint)
    return marker is not None or is_dataclass(plain)


def _as_table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(Problem("", f"must be a table, got {format_value(value)}; give it keys."))
    return value


def _component(kind: str, value: Any) -> Any:
    cls, rest = _named(kind, value)
    return _table(cls, rest, f" of {kind} {value['name']!r}")


def _named(kind: str, value: Any) -> tuple[type, dict[str, Any]]:
    """Returns the class with the registered ``name``, and the other keys."""
    if isinstance(value, str):
        raise ConfigError(
            Problem(
                "", f"must be a table, got {format_value(value)}; write name = {format_value(value)} in it."
            )
        )
    rest = dict(_as_table(value))
    name = rest.pop("name", None)
    known = names(kind)
    if name is None:
        typed = closest_matches("name", rest)
        hint = f"; did you mean 'name' instead of {typed[0]!r}?" if typed else ";"
        raise ConfigError(Problem("", f"is missing{hint} one of: {', '.join(known) or 'none'}.", "name"))
    if name not in known:
        raise ConfigError(Problem("", unknown_name(kind, name, f"is no registered {kind}, got"), "name"))
    return component_class(kind, name), rest


def _table(cls: type, table: Mapping[str, Any], owner: str) -> Any:
    known, renamed = fields_of(cls), _renamed(cls)
    problems = unknown_keys(table, known, owner, renamed)
    unknown = [key for key in table if key not in known]
    suggested = {name for key in unknown for name in closest_matches(key, known)}
    suggested |= {renamed[key] for key in unknown if key in renamed}
    problems += _missing(cls, set(table) | suggested)
    values = {key: (known[key][1], table[key]) for key in _decodable(table, problems) if key in known}
    return _construct(cls, values, problems)


def _renamed(cls: type) -> Mapping[str, str]:
    """Returns what the class of a table declares as ``renamed``: old key -> new key, key=old value -> new."""
    renamed: Mapping[str, str] = getattr(cls, "renamed", {})
    return renamed


def _decodable(table: Mapping[str, Any], problems: Iterable[Problem]) -> list[str]:
    """Returns the keys that have no problem yet."""
    wrong = {problem.key for problem in problems}
    return [key for key in table if key not in wrong]


def _extended(cls: type, marker: Flattened, value: Any) -> Any:
    component, table = _named(marker.kind, value)
    inner = fields_of(component)
    outer = {key: at for key, at in fields_of(cls).items() if key != marker.field and key not in inner}
    renamed = {**_renamed(cls), **_renamed(component)}
    problems = unknown_keys(table, {**inner, **outer}, f" of {marker.kind} {value['name']!r}", renamed)
    keys = _decodable(table, problems)
    component_field: dict[str, Any] = {}
    try:
        component_field[marker.field] = _table(
            component, {key: table[key] for key in keys if key in inner}, ""
        )
    except ConfigError as error:
        problems += error.problems
    values = {key: (outer[key][1], table[key]) for key in keys if key in outer}
    return _construct(cls, values, problems, component_field)


def _construct(
    cls: Callable[..., Any],
    values: Mapping[str, tuple[Any, Any]],
    problems: list[Problem],
    already_decoded: Mapping[str, Any] | None = None,
) -> Any:
    """Returns ``cls(**decoded values)``, or raises all problems of the values."""
    decoded: dict[str, Any] = dict(already_decoded or {})
    try:
        decoded |= decode_fields(values)
    except ConfigError as error:
        problems = [*problems, *error.problems]
    if problems:
        raise ConfigError(problems)
    try:
        return cls(**decoded)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(Problem("", str(error))) from None


def decode_fields(values: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Returns every value decoded; key -> (type, value) comes in."""
    decoded, problems = {}, []
    for key, (hint, value) in values.items():
        if key in PATH_KEYS and isinstance(value, str) and (fault := path_fault(value)):
            problems.append(Problem("", f"{fault}, got {value!a:.80}.", key))
            continue
        try:
            decoded[key] = decode(hint, value)
        except ConfigError as error:
            for problem in error.problems:
                is_own = not problem.where and not problem.key and not _is_table(hint)
                problems.append(Problem("", problem.message, key) if is_own else problem.under(key))
    if problems:
        raise ConfigError(problems)
    return decoded


def _missing(cls: type, given: set[str]) -> list[Problem]:
    message = "is missing; it has no default."
    return [
        Problem(name, message) if _is_table(hint) else Problem("", message, name)
        for name, (field, hint) in fields_of(cls).items()
        if name not in given and field.default is MISSING and field.default_factory is MISSING
    ]
