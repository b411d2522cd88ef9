"""Python functions as tools: their schemas, checked arguments, and the mistakes of a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest

from titanrl.protocols.tools import BadArguments
from titanrl.runtime.tools.schemas import FunctionTool, public_methods


@dataclass
class Range:
    """Interval."""

    low: int
    high: int = 10


@dataclass
class Query:
    """Query."""

    text: str
    ranges: list[Range]


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


def search(query: Query, order: Literal["up", "down"] = "up", limit: int | None = None) -> str:
    """Search the index.

    Results come page by page.

    Args:
        query: The query,
            over two lines.
        order: Order of the results.
        limit: Largest number of results.
    """
    return f"{type(query).__name__} {query.ranges[0].high} {order} {limit}"


def test_schema_has_descriptions_defaults_literals_and_nested_dataclasses() -> None:
    function = FunctionTool(search).schema["function"]
    assert function["name"] == "search"
    assert function["description"] == "Search the index.\nResults come page by page."
    parameters = function["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert list(parameters["properties"]) == ["query", "order", "limit"]
    order = parameters["properties"]["order"]
    assert order == {
        "default": "up",
        "description": "Order of the results.",
        "enum": ["up", "down"],
        "type": "string",
    }
    assert parameters["properties"]["limit"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert parameters["$defs"]["Query"]["required"] == ["text", "ranges"]
    assert parameters["$defs"]["Query"]["properties"]["ranges"]["items"] == {"$ref": "#/$defs/Range"}
    assert "over two lines" in parameters["properties"]["query"]["description"]


def test_arguments_become_the_types_of_the_function() -> None:
    assert FunctionTool(search)({"query": {"text": "a", "ranges": [{"low": "1"}]}}) == "Query 10 up None"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "query: Field required"),
        (
            {"query": {"text": "a", "ranges": [{"low": "x"}]}},
            "query.ranges.0.low: Input should be a valid int",
        ),
        ({"query": {"text": "a", "ranges": []}, "limits": 3}, "limits: Extra inputs are not permitted"),
        ({"query": {"text": "a", "ranges": []}, "order": "left"}, "order: Input should be 'up' or 'down'"),
        ({"field_0": {"text": "a", "ranges": []}}, "query: Field required"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArguments) as caught:
        FunctionTool(search)(arguments)
    assert message in str(caught.value)


def test_parameters_may_have_any_name() -> None:
    def convert(model_config: float, copy: Unit, _x: int = 1) -> Any:
        """Convert.

        Args:
            model_config: Length.
            copy: Unit.
            _x: Factor.
        """
        return model_config, copy, _x

    tool = FunctionTool(convert)
    assert list(tool.schema["function"]["parameters"]["properties"]) == ["model_config", "copy", "_x"]
    assert tool({"model_config": "2.5", "copy": "ft", "_x": 3}) == (2.5, Unit.FOOT, 3)


def no_docstring(a: int) -> int:
    return a


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """Double.

    Args:
        a: Number.
    """
    return 2 * int(a)


def not_described(a: int, b: int) -> int:
    """Add.

    Args:
        a: Number.
    """
    return a + b


def wrong_name(a: int) -> int:
    """Double.

    Args:
        a: Number.
        aa: Another.
    """
    return a


def any_number(*numbers: int) -> int:
    """Add.

    Args:
        numbers: Numbers.
    """
    return sum(numbers)


def no_schema(a: Callable[[int], int]) -> int:
    """Call.

    Args:
        a: Function.
    """
    return a(1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "has no docstring, which the model reads; write one"),
        (no_hint, "has no type hint for 'a'; add one, such as `a: str`"),
        (not_described, "does not describe 'b'; add a line `b: ...` under `Args:`"),
        (wrong_name, "describes 'aa' in its docstring, which is no parameter; parameters: a"),
        (any_number, "has the parameter '*numbers'; the policy passes arguments by name"),
        (no_schema, "whose type JSON cannot express"),
        (len, "signature that cannot be read|no type hint|positional|has the parameter"),
    ],
)
def test_functions_that_a_model_cannot_call_are_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match="my_tools:f") as caught:
        FunctionTool(function, "my_tools:f")
    assert any(each in str(caught.value) for each in message.split("|")), str(caught.value)


def test_public_methods_with_a_docstring_are_tools() -> None:
    class Shop:
        """Shop."""

        def reset(self, **row: Any) -> None:
            """Begin."""

        def buy(self, item: str) -> str:
            """Buy."""
            return item

        def silent(self) -> None: ...

        def _own(self) -> None:
            """Own."""

        @property
        def stock(self) -> int:
            """Stock."""
            raise AssertionError("a property is no tool, and is not read")

    assert list(public_methods(Shop())) == ["buy"]
