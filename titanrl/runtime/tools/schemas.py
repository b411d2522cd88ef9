"""Python functions -> OpenAI function schemas, and checked arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from titanrl.protocols.tools import BadArguments

__all__ = ["FunctionTool", "public_methods"]

NO_TOOLS = ("reset", "close", "reward")
"""Methods of an object that the rollout calls, not the policy."""
MAX_MISTAKES = 5
"""Wrong arguments that a message names."""


class FunctionTool:
    """A Python function as a tool: a type hint of each parameter, a docstring in Google's style.

    Types are those of pydantic: numbers, texts, Literal, Optional and other unions, lists, dicts,
    dataclasses, TypedDicts, enums, also nested. Numbers in texts are converted, because policies quote them.

    Args:
        function: the function, or a bound method.
        path: its name in errors.

    Raises:
        ValueError: a parameter lacks a type hint or a description, the docstring is missing, or a type has no
            JSON Schema; the text names the parameter and the remedy.
    """

    def __init__(self, function: Callable[..., Any], path: str = "") -> None:
        import docstring_parser

        self.name = str(getattr(function, "__name__", type(function).__name__))
        label = f"tool {path or self.name!r}"
        documentation = docstring_parser.parse(
            inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE
        )
        description = "\n".join(
            filter(None, (documentation.short_description, documentation.long_description))
        )
        if not description:
            raise ValueError(
                f"{label} has no docstring, which the model reads; write one with a description and `Args:`."
            )
        described = {each.arg_name: each.description or "" for each in documentation.params}
        fields = {
            name: _field(label, parameter, hint, described)
            for name, parameter, hint in _parameters(label, function)
        }
        if unknown := sorted(described.keys() - fields.keys()):
            raise ValueError(
                f"{label} describes {unknown[0]!r} in its docstring, which is no parameter; parameters: "
                f"{', '.join(fields) or 'none'}."
            )
        # Parameters may have names that a model may not, such as `copy` or `_x`, so fields are numbered.
        self._model = create_model(
            "Arguments",
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False, populate_by_name=False),
            **{f"field_{i}": field for i, field in enumerate(fields.values())},
        )
        self._keys = dict(zip(self._model.model_fields, fields, strict=True))
        self._function = function
        try:
            parameters = self._model.model_json_schema(by_alias=True)
        except Exception as error:  # pydantic raises several kinds for types without a schema.
            raise ValueError(
                f"{label} has a parameter whose type JSON cannot express: {error}; use numbers, texts, "
                "lists, dicts or dataclasses."
            ) from None
        self.schema = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": description,
                "parameters": _without_titles({**parameters, "required": parameters.get("required", [])}),
            },
        }

    def bind(self, function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
        """Return the call of another function of the same signature, such as a method of a new object."""

        def call(arguments: Mapping[str, Any]) -> Any:
            return function(**self.checked(arguments))

        return call

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with checked arguments.

        Raises:
            BadArguments: the arguments do not fit.
        """
        return self._function(**self.checked(arguments))

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them: dataclasses instead of tables, and so on.

        Raises:
            BadArguments: arguments are missing, unknown or of the wrong type.
        """
        try:
            model = self._model.model_validate(dict(arguments))
        except (ValidationError, RecursionError) as error:
            raise BadArguments(_mistakes(error)) from None
        given = model.model_fields_set
        return {key: getattr(model, field) for field, key in self._keys.items() if field in given}


def public_methods(instance: Any) -> dict[str, Callable[..., Any]]:
    """Return the tools of an object: its public methods with a docstring, without those in ``NO_TOOLS``."""
    methods = {}
    for name, function in inspect.getmembers(type(instance), inspect.isroutine):
        if not name.startswith("_") and name not in NO_TOOLS and inspect.getdoc(function):
            methods[name] = getattr(instance, name)
    return methods


def _parameters(label: str, function: Callable[..., Any]) -> list[tuple[str, inspect.Parameter, Any]]:
    """Return the name, the parameter and the type of each parameter."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(target, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ValueError(f"{label} has a signature that cannot be read: {error}.") from None
    found = []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
            text = f"{stars[parameter.kind]}{name}" if parameter.kind in stars else f"{name}, /"
            raise ValueError(
                f"{label} has the parameter {text!r}; the policy passes arguments by name, so each "
                "needs a name of its own."
            )
        if name not in hints:
            raise ValueError(f"{label} has no type hint for {name!r}; add one, such as `{name}: str`.")
        found.append((name, parameter, hints[name]))
    return found


def _field(label: str, parameter: inspect.Parameter, hint: Any, described: Mapping[str, str]) -> Any:
    name = parameter.name
    if not described.get(name):
        raise ValueError(f"{label} does not describe {name!r}; add a line `{name}: ...` under `Args:`.")
    try:
        TypeAdapter(hint)
    except Exception as error:  # As for schemas.
        raise ValueError(
            f"{label} has the type {hint!r} for {name!r}, which JSON cannot express: "
            f"{str(error).splitlines()[0].rstrip('.')}; use numbers, texts, lists, dicts or dataclasses."
        ) from None
    default = ... if parameter.default is parameter.empty else parameter.default
    return (hint, Field(default, alias=name, description=described[name]))


def _mistakes(error: ValidationError | RecursionError) -> str:
    """Return what is wrong with arguments, in the words of the function's parameters."""
    if isinstance(error, RecursionError):
        return "the arguments are nested too deeply"
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in mistakes]
    more = [f"{len(lines) - MAX_MISTAKES} more"] if len(lines) > MAX_MISTAKES else []
    return "; ".join(lines[:MAX_MISTAKES] + more)


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds, which cost tokens; parameters named so stay."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(each) for name, each in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
