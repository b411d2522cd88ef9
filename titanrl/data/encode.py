"""Dataset examples -> token ids and loss mask; spans come from the chat template, never from a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from titanrl.data.rendered import check_contents, check_keys, check_tools
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.errors import did_you_mean
from titanrl.protocols import Example, Messages, ProcessStep, Prompt

__all__ = ["TokenizedExample", "tokenize_example"]


class TokenizedExample(NamedTuple):
    """One row of token ids, cut after the last loss token."""

    ids: list[int]
    loss_mask: list[bool]
    """Whether each id is a label with a loss."""
    scalars: Mapping[str, float]
    """Batch keys [N] -> the row's value."""
    step_labels: Mapping[int, float]
    """Position in ``ids`` -> label of the step that ends there."""
    head_id: int | None = None
    """Index of the value head that the labels are about; -1: the weighted sum; None: there is one head."""


def tokenize_example(row: Example, tokenizer: ChatTokenizer, heads: Sequence[str] = ()) -> TokenizedExample:
    """Return a row as token ids: its prompt as a sampler would see it, then the response.

    Args:
        row: the row.
        tokenizer: the model's tokenizer with its chat template.
        heads: names of the model's value heads, if it has several.

    Raises:
        ValueError: the chat template does not determine the assistant's turns, no token has a loss, or the
            head is unknown.
    """
    labels: dict[int, float] = {}
    if isinstance(row.response, str):
        ids, loss_mask = _text(row.prompt, row.response, tokenizer)
    elif isinstance(row.response[0], ProcessStep):
        ids, loss_mask, labels = _steps(row.prompt, row.response, tokenizer)
    else:
        assert not isinstance(row.prompt, str)
        ids, loss_mask = _chat(row.prompt, row.response, tokenizer, row.tools)
    if not any(loss_mask):
        raise ValueError("has no token to train on; remove it, or check the chat template.")
    length = len(loss_mask) - loss_mask[::-1].index(True)
    return TokenizedExample(
        ids[:length], loss_mask[:length], dict(row.scalars), labels, _head_id(row.head, heads)
    )


def _head_id(name: str, heads: Sequence[str]) -> int | None:
    if name and name not in heads:
        raise ValueError(
            f"head must be one of [model] heads ({', '.join(heads) or 'none'}), got {name!r}"
            f"{did_you_mean(name, heads) or '; add it there.'}"
        )
    return (heads.index(name) if name else -1) if heads else None


def _text(prompt: Messages | str, response: str, tokenizer: ChatTokenizer) -> tuple[list[int], list[bool]]:
    before = tokenizer.encode(Prompt(prompt))
    after = tokenizer.encode_text(response)
    # An end token that the text already contains is not added again; its id may be 0.
    if tokenizer.eos_id is not None and not (after and after[-1] in tokenizer.eos_ids):
        after.append(tokenizer.eos_id)
    return before + after, [False] * len(before) + [True] * len(after)


def _steps(
    prompt: Messages | str, steps: Sequence[ProcessStep], tokenizer: ChatTokenizer
) -> tuple[list[int], list[bool], dict[int, float]]:
    ids, labels = tokenizer.encode(Prompt(prompt)), {}
    for step in steps:
        # Tokenized separately, so that no token spans the end of a step and the text after it.
        ids += tokenizer.encode_text(step.text)
        labels[len(ids)] = step.label
        ids += tokenizer.encode_text(step.separator)
    return ids, [position in labels for position in range(len(ids))], labels


def _chat(
    prompt: Messages,
    response: Messages,
    tokenizer: ChatTokenizer,
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[list[int], list[bool]]:
    messages = [*prompt, *response]
    text = tokenizer.render(messages, tools=tools)
    check_tools(tools, tokenizer.template)
    check_keys(messages, tokenizer.template)
    check_contents(messages, text)
    spans = tokenizer.assistant_spans(messages, tools)
    turns = [index for index in range(len(prompt), len(messages)) if _is_assistant(messages[index])]
    if spans is None:
        turns = [index for index in turns if _is_trained(index, messages[index])]
        spans = [_turn_span(messages, index, text, tokenizer, tools) for index in turns]
    elif len(spans) != sum(map(_is_assistant, messages)):
        marks = "{% generation %}"
        raise ValueError(
            f"has {len(spans)} turns with {marks} marks in the chat template; mark every assistant turn."
        )
    else:
        spans = spans[sum(map(_is_assistant, prompt)) :]
        spans = [
            span for index, span in zip(turns, spans, strict=True) if _is_trained(index, messages[index])
        ]
    ids, cuts = _encode_in_parts(text, [cut for span in spans for cut in span], tokenizer.encode_text)
    loss_mask = [False] * len(ids)
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        ends = [position for position in range(start, end) if ids[position] in tokenizer.eos_ids]
        if not ends and end < len(ids) and ids[end] in tokenizer.eos_ids:
            ends = [end]  # {% generation %} may close before the end token.
        # White space that a template prints after the end token is not part of the response.
        stop = ends[-1] + 1 if ends else end
        loss_mask[start:stop] = [True] * (stop - start)
        if not ends and stop == len(ids) and tokenizer.eos_id is not None:
            ids.append(tokenizer.eos_id)  # The template prints no end token; the model must learn to stop.
            loss_mask.append(True)
    return ids, loss_mask


def _is_assistant(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "assistant")


def _is_trained(index: int, message: Mapping[str, Any]) -> bool:
    weight: Any = message.get("weight", 1)
    if weight not in (0, 1):
        raise ValueError(f"has a weight in message {index} that is neither 0 nor 1, got {weight!r:.80}.")
    return bool(weight)


def _turn_span(
    messages: Sequence[dict[str, Any]],
    index: int,
    text: str,
    tokenizer: ChatTokenizer,
    tools: Sequence[Mapping[str, Any]],
) -> tuple[int, int]:
    """Return the span of an assistant's turn in the rendered chat, characters."""
    start = tokenizer.render(messages[:index], add_generation_prompt=True, tools=tools)
    end = tokenizer.render(messages[: index + 1], tools=tools)
    if end.startswith(start) and text.startswith(end):
        return len(start), len(end)
    raise ValueError(
        f"is rendered by the chat template so that message {index} has no span of its own (the template "
        "may drop thoughts of earlier turns); set a [model] chat_template with {% generation %} marks, or "
        "make each assistant turn a row of its own."
    )


def _encode_in_parts(
    text: str, cuts: Sequence[int], encode: Callable[[str], list[int]]
) -> tuple[list[int], list[int]]:
    """Return the ids of ``text``, and the number of ids before each of the ``cuts`` (characters)."""
    ids = encode(text)
    prefixes = [encode(text[:cut]) for cut in cuts]
    if all(ids[: len(prefix)] == prefix for prefix in prefixes):
        return ids, [len(prefix) for prefix in prefixes]
    # A token would span a cut. A sampler sees the prompt alone, so the parts are tokenized separately.
    bounds = [0, *cuts, len(text)]
    parts = [encode(text[start:end]) for start, end in pairwise(bounds)]
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part))
    return [token for part in parts for token in part], starts[1:-1]
