"""Checks that a chat template printed the messages that it was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "END_MARK",
    "START_MARK",
    "check_contents",
    "check_keys",
    "check_tools",
    "content_text",
    "is_printed",
]

START_MARK, END_MARK = "\ue100\ue101", "\ue102\ue103"
"""Marks around a content, of characters for private use, which no template treats specially."""
REMEDY = "set a [model] chat_template that prints them, or remove them."
PRINTED_KEYS = ("tool_calls", "reasoning_content")
"""Keys of a message that hold text of the model: a template that never reads them drops it."""


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


def check_keys(messages: Sequence[Mapping[str, Any]], template: str) -> None:
    """Refuse messages with tool calls or thoughts that a template never reads.

    Args:
        messages: the chat.
        template: Jinja.

    Raises:
        ValueError: naming the message and the key.
    """
    for index, message in enumerate(messages):
        for key in PRINTED_KEYS:
            if message.get(key) and key not in template:
                raise ValueError(
                    f"has {key} in message {index}, which the chat template does not print; {REMEDY}"
                )


def check_tools(tools: Sequence[Mapping[str, Any]], template: str) -> None:
    """Refuse tools that a template never reads.

    Args:
        tools: schemas of the functions that the model may call.
        template: Jinja.

    Raises:
        ValueError: there are tools, and the template has no place for them.
    """
    if tools and "tools" not in template:
        raise ValueError(f"has tools, which the chat template does not print; {REMEDY}")
