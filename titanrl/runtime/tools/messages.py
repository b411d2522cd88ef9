"""Messages of tools in a chat: results, and the tools' description for templates that print none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from titanrl.runtime.tools.toolbox import ToolResult

__all__ = ["instructions", "prints_role_tool", "result_messages", "without_special_tokens"]

MARK = "\ue100\ue101"


def instructions(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return a description of tools and of the format ``hermes``, for the system message.

    Args:
        schemas: schemas of the tools.
    """
    listed = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    return (
        f"You can call these functions:\n{listed}\n\n"
        "To call one, write its name and its arguments as JSON:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>\n'
        "The result comes in the next message. Then call again, or give the final answer."
    )


def result_messages(
    results: Sequence[ToolResult], *, first: int, role: str, special: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the messages that tell the policy the results of a turn.

    Args:
        results: the results.
        first: number of the turn's first call in the rollout.
        role: ``tool``, or ``user`` for templates that do not print ``tool``, which get one message.
        special: texts of special tokens, which must not become tokens.
    """
    contents = [without_special_tokens(result.content, special) for result in results]
    if role != "tool":
        text = "\n".join(f"<tool_response>\n{content}\n</tool_response>" for content in contents)
        return [{"role": role, "content": text}]
    return [
        {
            "role": "tool",
            "name": result.name or "unknown",
            "tool_call_id": f"call{number:05d}",  # Nine letters and digits, as Mistral's templates require.
            "content": content,
        }
        for number, (result, content) in enumerate(zip(results, contents, strict=True), first)
    ]


def without_special_tokens(text: str, special: Sequence[str]) -> str:
    """Return a text in which special tokens have a space after their first character.

    A result that contains them could otherwise end its message and speak for the user.
    """
    for token in special:
        if len(token) > 1 and token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def prints_role_tool(tokenizer: Any, schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a chat template prints messages of the role ``tool`` after a call in the content.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        schemas: schemas of the tools.
    """
    turn = [{"role": "assistant", "content": "Call."}, {"role": "tool", "name": "f", "content": MARK}]
    turn[1]["tool_call_id"] = "call00001"
    messages = [{"role": "user", "content": "Ask."}, *turn, *turn]
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=list(schemas) or None, add_generation_prompt=True, tokenize=False
        )
    except Exception:  # A template's own.
        return False
    return str(text).count(MARK) == 2
