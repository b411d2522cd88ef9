"""Checks that a chat template printed the messages that it was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["check_contents", "content_text", "is_printed"]


def content_text(message: Mapping[str, Any]) -> str:
    """Return the content of a message as text; of a list of parts, their texts, one per line."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def is_printed(content: str, text: str) -> bool:
    """Return whether a rendered text contains a content, up to white space or as a text of JSON."""
    content = content.strip()
    if content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text:
        return True
    return "".join(content.split()) in "".join(text.split())


def check_contents(messages: Sequence[Mapping[str, Any]], text: str, *, first: int = 0) -> None:
    """Refuse a rendering without the content of a message: the template ignores it, or its role.

    The assistant's messages are left out, because many templates remove the thoughts of earlier turns.

    Args:
        messages: messages that the text should contain.
        text: the rendered chat, or the part that holds the messages.
        first: index of the first of the messages in its chat, for the error.

    Raises:
        ValueError: a content is missing; the error names its message and role.
    """
    for index, message in enumerate(messages, first):
        role = message.get("role")
        if role != "assistant" and not is_printed(content_text(message), text):
            raise ValueError(
                f"is rendered by the chat template without the content of message {index}, role {role!r}; "
                "set a [model] chat_template that prints this role, or leave the message out."
            )
