"""How a reward function is called, by the names of its parameters; no torch, because workers import it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from titanrl.ops.columns import lookup
from titanrl.runtime.dotted import load_dotted

__all__ = ["FORMS", "Form", "Row", "Signature", "call_in_process", "signature_of"]

Form: TypeAlias = Literal["row", "rows", "trl", "verl"]

FORMS: Mapping[Form, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "verl": {
            "solution_str": ("response",),
            "data_source": ("data_source", "source"),
            "ground_truth": ("reward_model.ground_truth", "answer"),
        },
        "trl": {"completions": ("response",), "prompts": ("prompt",)},
        "rows": {
            "responses": ("response",),
            "prompts": ("prompt",),
            "conversations": ("conversation",),
            "answers": ("answer",),
            "sources": ("source",),
        },
        "row": {"response": ("response",)},
    }
)
"""Form of a signature -> parameter -> the values that it gets, the first one that a row has. The first
parameter shows the form; parameters that are not listed get the value of their own name."""

TEXTS = ("response", "prompt", "conversation", "answer", "source")
MISSING = object()


class Row(NamedTuple):
    """What a reward function may read of a row."""

    texts: Mapping[str, str]
    columns: Mapping[str, Any]

    def value(self, names: Sequence[str]) -> Any:
        """Returns the first value that the row has: a text, `columns`, or a column, which may be dotted."""
        for name in names:
            if name in self.texts:
                return self.texts[name]
            value = self.columns if name == "columns" else lookup(self.columns, name)
            if value is not None:
                return value
        return MISSING


@dataclass(frozen=True, slots=True)
class Signature:
    """A reward function and what its parameters get."""

    function: Callable[..., Any]
    form: Form
    sources: Mapping[str, tuple[str, ...]]
    """Parameter -> names of the values that it gets, the first one that a row has."""
    optional: frozenset[str]
    """Parameters that may be left out."""
    takes_columns: bool
    """Whether it takes any column by keyword, as functions for TRL do."""

    @property
    def is_per_row(self) -> bool:
        return self.form in ("row", "verl")

    def columns(self) -> tuple[str, ...]:
        """Returns the columns without which the function cannot be called."""
        known = (*TEXTS, "columns")
        return tuple(
            names[0]
            for parameter, names in self.sources.items()
            if parameter not in self.optional and not any(name in known for name in names)
        )

    def texts(self) -> tuple[str, ...]:
        """Returns the texts and columns of the batch that it reads."""
        names = {name for names in self.sources.values() for name in names}
        reads_columns = self.takes_columns or bool(names - set(TEXTS))
        return (*(name for name in TEXTS if name in names), *["columns"][:reads_columns])

    def scores(self, rows: Sequence[Row], chat: bool) -> Any:
        """Returns the function's results of these rows, one per row, or an awaitable of them.

        Args:
            rows: the rows; those of a function that is called per row are scored in turn.
            chat: whether prompts and responses are lists of messages.

        Raises:
            ValueError: a row lacks a column, or the function returns another number of results.
        """
        if self.is_per_row:
            results = [self.function(**self._of_row(row, chat)) for row in rows]
            if any(map(inspect.isawaitable, results)):
                return _in_turn(results)
            return [_number(result) for result in results]
        result = self.function(**self._of_rows(rows, chat))
        return _later(result, len(rows)) if inspect.isawaitable(result) else _numbers(result, len(rows))

    def _of_row(self, row: Row, chat: bool) -> dict[str, Any]:
        values = {name: _as_chat(names, row.value(names), chat) for name, names in self.sources.items()}
        self._refuse_missing({name for name, value in values.items() if value is MISSING}, row)
        return {name: value for name, value in values.items() if value is not MISSING}

    def _of_rows(self, rows: Sequence[Row], chat: bool) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name, names in self.sources.items():
            values = [_as_chat(names, row.value(names), chat) for row in rows]
            lacking = [row for row, value in zip(rows, values, strict=True) if value is MISSING]
            if lacking:
                self._refuse_missing({name}, lacking[0])
            if len(lacking) < len(rows):
                arguments[name] = [None if value is MISSING else value for value in values]
        if self.takes_columns:
            others = dict.fromkeys(
                column for row in rows for column in row.columns if column not in arguments
            )
            arguments |= {column: [row.columns.get(column) for row in rows] for column in others}
        return arguments

    def _refuse_missing(self, missing: set[str], row: Row) -> None:
        for name in sorted(missing - self.optional):
            column = self.sources[name][0]
            raise ValueError(
                f"the row has no column {column!r}, which the function reads as {name!r}; name another "
                f"one in arguments. Columns: {', '.join(row.columns) or 'none'}."
            )


@cache
def signature_of(path: str, arguments: tuple[tuple[str, str], ...] = ()) -> Signature:
    """Returns the signature of the function at ``module:name``.

    Args:
        path: importable module, also from the working directory, and name of the function in it.
        arguments: pairs of a parameter and the text or column that it gets.

    Raises:
        ValueError: there is no such function, or its parameters tell no form.
    """
    function: Callable[..., Any] = load_dotted(path)
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ValueError(f"function {path!r} has no signature: {error}.") from None
    form = next((form for form, known in FORMS.items() if next(iter(known)) in parameters), None)
    if form is None:
        first = ", ".join(next(iter(known)) for known in FORMS.values())
        raise ValueError(
            f"function {path!r} must have one of the parameters {first}, which tell how it is called, got "
            f"{', '.join(parameters) or 'none'}; rename its parameter."
        )
    own = dict(arguments)
    named = {
        name: each
        for name, each in parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }
    takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
    unknown = sorted(own.keys() - named.keys())
    if unknown and not takes_any:
        raise ValueError(
            f"arguments must name parameters of {path!r}, got {unknown[0]!r}; parameters: {', '.join(named)}."
        )
    sources = {
        name: (own[name],) if name in own else FORMS[form].get(name, (name,)) for name in (*named, *unknown)
    }
    optional = {name for name, each in named.items() if each.default is not each.empty}
    return Signature(
        function, form, MappingProxyType(sources), frozenset(optional), takes_any and form == "trl"
    )


def call_in_process(path: str, arguments: tuple[tuple[str, str], ...], chat: bool, row: Row) -> float | None:
    """Returns the result of one row, in a worker process."""
    result = signature_of(path, arguments).scores([row], chat)
    (value,) = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
    return None if value is None else float(value)


def _as_chat(names: Sequence[str], value: Any, chat: bool) -> Any:
    """Returns a prompt or a response as a list of one message, as TRL passes chats."""
    roles = {"prompt": "user", "response": "assistant"}
    if not chat or names[0] not in roles or not isinstance(value, str):
        return value
    return [{"role": roles[names[0]], "content": value}]


def _number(result: Any) -> Any:
    """Returns the score of one row: the result, or the score of a mapping as functions for verl return it."""
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(
                f"the function returned a dict without 'score', with {', '.join(map(str, result))}"
            )
        return result["score"]
    return result


def _numbers(result: Any, num_rows: int) -> list[Any]:
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple) or len(values) != num_rows:
        got = f"{len(values)} values" if isinstance(values, list | tuple) else type(values).__name__
        raise ValueError(f"the function returned {got}, not a list of one number per row, {num_rows}")
    return [_number(value) for value in values]


async def _in_turn(results: Sequence[Any]) -> list[Any]:
    return [_number(await result if inspect.isawaitable(result) else result) for result in results]


async def _later(result: Awaitable[Any], num_rows: int) -> list[Any]:
    return _numbers(await result, num_rows)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
