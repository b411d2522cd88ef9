"""The token ids between two turns of a chat, whose sampled tokens are never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from titanrl.data.rendered import END_MARK, START_MARK, check_contents

if TYPE_CHECKING:
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["bridge"]


def bridge(
    tokenizer: ChatTokenizer,
    before: Sequence[Mapping[str, Any]],
    turn: Mapping[str, Any],
    sampled_end: int | None,
    after: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int] | None:
    """Return the ids that follow a sampled turn: its end, the next messages and the generation prompt.

    The text comes from the template alone: it is what a rendering of all messages has behind the turn's text.
    None if a rendering does not begin with the prompt of ``before`` and the turn's text, because the template
    rewrites history; the next prompt must then be rendered from the beginning. White space that the template
    adds to the turn's text or removes from it does not count, because the sampled tokens stay as they are.

    Args:
        tokenizer: the model's tokenizer with its template.
        before: messages before the turn, which were rendered with the generation prompt.
        turn: the sampled message. Its content is the text of all sampled ids without their end token, tool
            calls and thoughts included, so keys that repeat parts of it (``tool_calls``,
            ``reasoning_content``) are not rendered.
        sampled_end: the end token that was sampled; None: the turn was cut off, and the end of the template
            follows it.
        after: messages after the turn.
        tools: schemas of the functions that the policy may call.
        template_kwargs: further variables of the template, for instance ``enable_thinking``.

    Raises:
        ConfigError: there is no template.
        ValueError: the template rejects the messages, or ignores one of ``after``.
    """

    def render(messages: Sequence[Mapping[str, Any]], *, is_prompt: bool = True) -> str:
        return tokenizer.render(
            messages, add_generation_prompt=is_prompt, tools=tools, template_kwargs=template_kwargs
        )

    prompt, text = render(before), turn["content"]
    turn = {key: value for key, value in turn.items() if key not in ("tool_calls", "reasoning_content")}
    rest = _behind(render([*before, {**turn, "content": text + END_MARK}, *after]), prompt, text)
    if rest is None and (opening := _opening(render, before, turn, prompt)):
        # The generation prompt opens a block of thoughts, which the message begins with in history.
        whole = render([*before, {**turn, "content": opening + text + END_MARK}, *after])
        rest = _behind(whole, prompt[: -len(opening)], opening + text)
    if rest is None:
        return None
    check_contents(after, rest, first=len(before) + 1)
    ids = tokenizer.encode_text(rest)
    position = None if sampled_end is None else _first_end(tokenizer, ids)
    if position is None:
        return ids
    if ids[position] != sampled_end:
        # The first end token may also begin the next message, in templates that print none after a turn.
        closing = _behind(
            render([*before, {**turn, "content": text + END_MARK}], is_prompt=False), prompt, text
        )
        if closing is not None and _first_end(tokenizer, tokenizer.encode_text(closing)) is None:
            return ids
    return ids[position + 1 :]


def _behind(whole: str, prompt: str, text: str) -> str | None:
    """Return the part of a rendering behind the marked end of a turn; None if the turn was rewritten."""
    end = whole.find(END_MARK, len(prompt))
    if end < 0 or not whole.startswith(prompt) or whole[len(prompt) : end].split() != text.split():
        return None
    return whole[end + len(END_MARK) :]


def _opening(render: Any, before: Sequence[Mapping[str, Any]], turn: Mapping[str, Any], prompt: str) -> str:
    """Return the part of the generation prompt that the template does not print before a turn's text."""
    header = render([*before, {**turn, "content": START_MARK}], is_prompt=False).partition(START_MARK)[0]
    return prompt[len(header) :] if prompt.startswith(header) else ""


def _first_end(tokenizer: ChatTokenizer, ids: Sequence[int]) -> int | None:
    """Return the position of the first end token, if only white space precedes it."""
    for position, token in enumerate(ids):
        if token in tokenizer.eos_ids:
            return position
        if tokenizer.decode_prompt([token]).strip():
            break
    return None
