"""Messages of dataset rows: every key is kept, text parts are joined, tool calls are checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from titanrl.components.sources.records.rows import parse_messages, parse_tools

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def assistant(**keys: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", **keys}]


def test_all_keys_that_are_not_null_are_kept() -> None:
    (message,) = parse_messages("messages", assistant(content="5", name="x", weight=0, tool_call_id=None))
    assert message == {"role": "assistant", "content": "5", "name": "x", "weight": 0}


def test_arguments_of_tool_calls_become_objects() -> None:
    (message,) = parse_messages("messages", assistant(content=None, tool_calls=[CALL]))
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    assert CALL["function"]["arguments"] == '{"a": 2}'  # type: ignore[index]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1"}]
    (message,) = parse_messages("messages", [{"role": "user", "content": parts}])
    assert message["content"] == "1 + 1"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": None}, r"messages\[0\].content must be a text, got None"),
        ({"content": [{"type": "image_url"}]}, r"messages\[0\].content must be a text"),
        ({"content": "", "tool_calls": "add"}, r"messages\[0\].tool_calls must be a list of calls"),
        (
            {"content": "", "tool_calls": [{"name": "add"}]},
            r"tool_calls\[0\] must have a function with a name",
        ),
        (
            {"content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]},
            r"tool_calls\[0\].function.arguments is not JSON",
        ),
    ],
)
def test_invalid_messages_are_refused(message: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_messages("messages", assistant(**message))


def test_tools_are_a_list_or_its_json() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert parse_tools("tools", tools) == parse_tools("tools", json.dumps(tools)) == tuple(tools)
    assert parse_tools("tools", None) == ()
    with pytest.raises(ValueError, match="tools must be a list of schemas"):
        parse_tools("tools", ["add"])
