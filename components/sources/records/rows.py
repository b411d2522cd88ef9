"""Rows of a JSON Lines file and the chats in them; every bad row is named with its line and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError
from titanrl.protocols import Messages

__all__ = ["parse_messages", "parse_object", "read_lines"]

ROLES = ("system", "user", "assistant", "tool")


def read_lines(path: Path, owner: str) -> list[tuple[int, str]]:
    """Returns (line number, text) of each line of a UTF-8 file that is not blank, at least one.

    Args:
        owner: how messages name the source.

    Raises:
        ConfigError: no such file, or no row in it.
    """
    try:
        # Not splitlines: it also cuts at separators that stand inside texts.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ConfigError(f"{owner} path: '{path}' does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{owner} path: '{path}' can't be read: {error}.") from None
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{owner} path: '{path}' holds no row; add at least one.")
    return found


def parse_object(line: str) -> dict[str, Any]:
    """Returns the object that a line holds.

    Raises:
        ValueError: it holds something else.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); write one object a line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, got {type(row).__name__}; write one object a line.")
    return row


def parse_messages(key: str, value: Any) -> Messages:
    """Returns chat messages, their role and content alone.

    Raises:
        ValueError: naming the message that is none.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be a text or a list of messages, not empty, got {value!r:.80}.")
    for index, message in enumerate(value):
        place = f"{key}[{index}]"
        if not isinstance(message, dict):
            raise ValueError(f"{place} must be an object with role and content, got {message!r:.80}.")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"{place}.role must be one of {', '.join(ROLES)}, got {role!r:.80}.")
        if not isinstance(content, str):
            raise ValueError(f"{place}.content must be a text, got {content!r:.80}.")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)
