"""A sampled turn of the policy -> its content, its thoughts and its tool calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from titanrl.errors import did_you_mean
from titanrl.protocols.tools import ToolCall
from titanrl.runtime.tools.formats import FORMATS, Types

__all__ = ["ParsedTurn", "ToolParser", "opens_thoughts", "prints_tools", "recognise", "special_tokens"]

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
MARK = "\ue100\ue101"
"""Text of the message before the probe, of characters for private use."""
PROBE = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "Text."}},
            "required": ["text"],
        },
    },
}
"""Schema of the function whose call a template renders, so that its format can be recognised."""
EXPECTED = ToolCall("probe_tool", {"text": "mark"})


class ParsedTurn(NamedTuple):
    """A turn of the policy."""

    content: str
    """Text without thoughts and calls."""
    reasoning_content: str
    """Thoughts; a tool call within them is none."""
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[str, ...]
    """Why calls cannot be read, for the policy."""
    calls: tuple[ToolCall | str, ...]
    """Calls and problems in the order of the text."""


class ToolParser:
    """Finds tool calls in a response's text, special tokens included.

    Args:
        name: name of the format, one of ``FORMATS``.
        schemas: schemas of the tools, for formats that write arguments as text.
        opens_thoughts: whether the generation prompt opens a block of thoughts.

    Raises:
        ValueError: there is no such format.
    """

    def __init__(
        self, name: str, schemas: Sequence[Mapping[str, Any]] = (), *, opens_thoughts: bool = False
    ) -> None:
        if name not in FORMATS:
            near = did_you_mean(name, FORMATS) or ";"
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {name!r}{near} correct it.")
        self.name = name
        functions = [each["function"] for each in schemas]
        self._types: Types = {each["name"]: each.get("parameters") or {} for each in functions}
        self._opens_thoughts = opens_thoughts

    def parse(self, text: str) -> ParsedTurn:
        """Return the parts of a turn.

        Args:
            text: the response without its end token.
        """
        thoughts, rest = _split_thoughts(text, self._opens_thoughts)
        form = FORMATS[self.name]
        start = form.start.search(rest)
        if start is None:
            return ParsedTurn(rest.strip(), thoughts, (), (), ())
        calls = tuple(form.parse(rest[start.start() :].strip(), self._types))
        return ParsedTurn(
            rest[: start.start()].strip(),
            thoughts,
            tuple(each for each in calls if isinstance(each, ToolCall)),
            tuple(each for each in calls if isinstance(each, str)),
            calls,
        )


def _split_thoughts(text: str, is_open: bool) -> tuple[str, str]:
    """Return the thoughts at the begin of a text, and what follows them."""
    for begin, end in THOUGHTS:
        starts = text.lstrip().startswith(begin)
        thoughts, closed, rest = text.partition(end)
        if closed:
            return thoughts.strip().removeprefix(begin).strip(), rest
        if starts:
            return text.strip().removeprefix(begin).strip(), ""
    return (text.strip(), "") if is_open else ("", text)


def recognise(tokenizer: Any) -> str | None:
    """Return the name of the format in which a chat template prints tool calls; None: it prints none.

    The template renders a call, and the first format that reads this call from the text is the one.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
    """
    special = special_tokens(tokenizer)
    for arguments, content in itertools.product(
        (EXPECTED.arguments, json.dumps(EXPECTED.arguments)), ("", None)
    ):
        call = {
            "id": "call00001",
            "type": "function",
            "function": {"name": EXPECTED.name, "arguments": arguments},
        }
        messages = [
            {"role": "user", "content": MARK},
            {"role": "assistant", "content": content, "tool_calls": [call]},
        ]
        text = _rendered(tokenizer, messages)
        if text is None or MARK not in text:
            continue
        text = text.rpartition(MARK)[2]
        prompt = _rendered(tokenizer, messages[:1], add_generation_prompt=True) or ""
        text = _without_end(text.removeprefix(prompt.rpartition(MARK)[2]), special)
        for name in FORMATS:
            turn = ToolParser(name, [PROBE]).parse(text)
            if turn.calls == (EXPECTED,):
                return name
    return None


def prints_tools(tokenizer: Any) -> bool:
    """Return whether a chat template prints the schemas of tools."""
    text = _rendered(tokenizer, [{"role": "user", "content": MARK}], add_generation_prompt=True)
    return text is not None and EXPECTED.name in text


def opens_thoughts(tokenizer: Any) -> bool:
    """Return whether the generation prompt of a chat template opens a block of thoughts."""
    text = _rendered(tokenizer, [{"role": "user", "content": MARK}], add_generation_prompt=True) or ""
    return text.rstrip().endswith(tuple(begin for begin, _ in THOUGHTS))


def _rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
) -> str | None:
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tools=[PROBE], add_generation_prompt=add_generation_prompt, tokenize=False
        )
    except Exception:  # A template's own; another form of the message may do.
        return None
    return str(text)


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts of all special tokens, the named ones and those added to the vocabulary."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return tuple(
        dict.fromkeys([*tokenizer.all_special_tokens, *(str(each) for each in added if each.special)])
    )


def _without_end(text: str, special: Sequence[str]) -> str:
    text = text.strip()
    while ends := [each for each in special if each and text.endswith(each)]:
        text = text.removesuffix(max(ends, key=len)).strip()
    return text
