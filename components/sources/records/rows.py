"""Rows of a JSON Lines file and their chat messages; errors name the line and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError
from titanrl.protocols import Messages

__all__ = ["parse_messages", "parse_object", "parse_tools", "read_lines"]

ROLES = ("system", "user", "assistant", "tool")


def read_lines(path: Path, owner: str) -> list[tuple[int, str]]:
    """Returns (line number, text) of each non-blank line of a UTF-8 file; at least one.

    Args:
        path: path of the file.
        owner: name of the source in messages.

    Raises:
        ConfigError: the file does not exist, cannot be read, or has no rows.
    """
    try:
        # Not splitlines, which also splits at separators within texts.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ConfigError(f"{owner} path: '{path}' does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{owner} path: '{path}' can't be read: {error}.") from None
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError(f"{owner} path: '{path}' has no rows; add at least one.")
    return rows


def parse_object(line: str) -> dict[str, Any]:
    """Returns the JSON object of a line.

    Raises:
        ValueError: the line is not a JSON object.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); write one object per line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, got {type(row).__name__}; write one object per line.")
    return row


def parse_messages(key: str, value: Any) -> Messages:
    """Returns chat messages with all keys that are not null, as the chat template gets them.

    A content that is a list of text parts becomes one text. A content may be null beside tool calls or
    thoughts and becomes an empty text. Arguments of tool calls that are a text of JSON become an object.

    Args:
        key: name of the value in messages of errors.
        value: list of objects with role and content.

    Raises:
        ValueError: a message is invalid; the error names it.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be a text or a list of messages, not empty, got {value!r:.80}.")
    return tuple(_message(f"{key}[{index}]", message) for index, message in enumerate(value))


def _message(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError(f"{name} must be an object with role and content, got {message!r:.80}.")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"{name}.role must be one of {', '.join(ROLES)}, got {role!r:.80}.")
    parsed = {key: value for key, value in message.items() if value is not None}
    if content is None and role == "assistant" and ("tool_calls" in parsed or "reasoning_content" in parsed):
        content = ""
    if isinstance(content, list) and content and all(map(_is_text_part, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{name}.content must be a text, got {content!r:.80}.")
    parsed["content"] = content
    if "tool_calls" in parsed:
        parsed["tool_calls"] = _tool_calls(f"{name}.tool_calls", parsed["tool_calls"])
    return parsed


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _tool_calls(name: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise ValueError(f"{name} must be a list of calls, got {calls!r:.80}.")
    parsed = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"{name}[{index}] must have a function with a name, got {call!r:.80}.")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{name}[{index}].function.arguments is not JSON ({error}).") from None
        parsed.append({**call, "function": {**function, "arguments": {} if arguments is None else arguments}})
    return parsed


def parse_tools(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Returns the schemas of a row's tools: a list of objects, or a text of JSON with one.

    Args:
        name: the column, for errors.
        value: its value; null is no tools.

    Raises:
        ValueError: the value is not a list of objects.
    """
    tools = value
    if isinstance(value, str):
        try:
            tools = json.loads(value or "[]")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is not JSON ({error}); write a list of schemas.") from None
    if tools is None:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{name} must be a list of schemas, which are objects, got {value!r:.80}.")
    return tuple(tools)
