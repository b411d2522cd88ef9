"""The token ids between two turns of a chat, whose sampled tokens are never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["bridge"]

BEGIN, END = "\ue100\ue101", "\ue102\ue103"
"""Marks around a turn's text, of characters for private use, which no template treats specially."""


def bridge(
    tokenizer: ChatTokenizer,
    before: Sequence[Mapping[str, Any]],
    turn: Mapping[str, Any],
    sampled_end: int | None,
    after: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int] | None:
    """Return the ids that follow a sampled turn: its end, the next messages and the generation prompt.

    The text comes from the template alone: it is what a rendering of all messages has behind the turn's text.
    None if a rendering does not begin with the prompt of ``before`` and the turn's text, because the template
    rewrites history; the next prompt must then be rendered from the beginning.

    Args:
        tokenizer: the model's tokenizer with its template.
        before: messages before the turn, which were rendered with the generation prompt.
        turn: the sampled message; its content is the text of the sampled ids without their end token.
        sampled_end: the end token that was sampled; None: the turn was cut off, and the end token of the
            template follows it.
        after: messages after the turn.
        tools: schemas of the functions that the policy may call.

    Raises:
        ConfigError: there is no template.
        ValueError: the template rejects the messages.
    """
    prompt = tokenizer.render(before, add_generation_prompt=True, tools=tools)
    text = turn["content"]
    rest = _behind(tokenizer, prompt + text, [*before, turn, *after], tools)
    if rest is None:
        # The template may trim the text, or escape some of it, which marks around it show.
        marked = {**turn, "content": BEGIN + text + END}
        whole = tokenizer.render([*before, marked, *after], add_generation_prompt=True, tools=tools)
        # White space before the text changes nothing that was sampled.
        is_kept = whole.startswith(prompt) and whole[len(prompt) :].lstrip().startswith(BEGIN)
        if not is_kept or END not in whole:
            return None
        rest = whole[whole.index(END) + len(END) :]
    ids = tokenizer.encode_text(rest)
    return ids if sampled_end is None else _without_end(tokenizer, ids)


def _behind(
    tokenizer: ChatTokenizer,
    start: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str | None:
    """Return the rendering of messages behind ``start``; None if it does not begin with it."""
    whole = tokenizer.render(messages, add_generation_prompt=True, tools=tools)
    return whole[len(start) :] if whole.startswith(start) else None


def _without_end(tokenizer: ChatTokenizer, ids: list[int]) -> list[int]:
    """Return the ids behind their first end token, if only white space precedes it: it was sampled."""
    for position, token in enumerate(ids):
        if token in tokenizer.eos_ids:
            return ids[position + 1 :]
        if tokenizer.decode_prompt([token]).strip():
            break
    return ids
