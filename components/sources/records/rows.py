"""Rows of a JSON Lines file and their chat messages; errors name the line and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError
from titanrl.protocols import Messages

__all__ = ["parse_messages", "parse_object", "read_lines"]

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
    """Returns chat messages reduced to role and content.

    Args:
        key: name of the value in messages of errors.
        value: list of objects with role and content.

    Raises:
        ValueError: a message is invalid; the error names it.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be a text or a list of messages, not empty, got {value!r:.80}.")
    for index, message in enumerate(value):
        name = f"{key}[{index}]"
        if not isinstance(message, dict):
            raise ValueError(f"{name} must be an object with role and content, got {message!r:.80}.")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"{name}.role must be one of {', '.join(ROLES)}, got {role!r:.80}.")
        if not isinstance(content, str):
            raise ValueError(f"{name}.content must be a text, got {content!r:.80}.")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)
