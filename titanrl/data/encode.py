"""Fixed rows -> token ids, and which of them are trained: known from the template, never searched for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from titanrl.data.tokenizer import ChatTokenizer
from titanrl.errors import did_you_mean
from titanrl.protocols import Example, Messages, ProcessStep, Prompt

__all__ = ["TokenizedExample", "encode_row"]


class TokenizedExample(NamedTuple):
    """One row of token ids; what follows the last trained one is left out."""

    ids: list[int]
    trained: list[bool]
    """Of each id, whether it is a label that is trained on."""
    scalars: Mapping[str, float]
    """Batch keys [N] -> the row's number."""
    step_labels: Mapping[int, float]
    """Place in ``ids`` -> label of the step that ends there."""
    head_id: int | None = None
    """Number of the value head that the labels are about, -1: the weighted sum; None: there is one head."""


def encode_row(row: Example, tokens: ChatTokenizer, heads: Sequence[str] = ()) -> TokenizedExample:
    """Returns the row's ids: its prompt as a sampler would see it, then what is trained.

    Args:
        heads: names of the trained model's value heads, where there are several.

    Raises:
        ValueError: the chat template does not say where the assistant's turns lie; no token is trained; an
            unknown head.
    """
    labels: dict[int, float] = {}
    if isinstance(row.response, str):
        ids, trained = _text(row.prompt, row.response, tokens)
    elif isinstance(row.response[0], ProcessStep):
        ids, trained, labels = _steps(row.prompt, row.response, tokens)
    else:
        assert not isinstance(row.prompt, str)
        ids, trained = _chat(row.prompt, row.response, tokens)
    if not any(trained):
        raise ValueError("holds no token to train on; remove it, or check the chat template.")
    length = len(trained) - trained[::-1].index(True)
    return TokenizedExample(
        ids[:length], trained[:length], dict(row.scalars), labels, _head_id(row.head, heads)
    )


def _head_id(name: str, heads: Sequence[str]) -> int | None:
    if name and name not in heads:
        raise ValueError(
            f"head must be one of [model] heads ({', '.join(heads) or 'none'}), got {name!r}"
            f"{did_you_mean(name, heads) or '; name it there.'}"
        )
    return (heads.index(name) if name else -1) if heads else None


def _text(prompt: Messages | str, response: str, tokens: ChatTokenizer) -> tuple[list[int], list[bool]]:
    before = tokens.encode(Prompt(prompt))
    after = tokens.encode_text(response)
    # An end token that the text holds already is not doubled; an id may be 0.
    if tokens.eos_id is not None and not (after and after[-1] in tokens.eos_ids):
        after.append(tokens.eos_id)
    return before + after, [False] * len(before) + [True] * len(after)


def _steps(
    prompt: Messages | str, steps: Sequence[ProcessStep], tokens: ChatTokenizer
) -> tuple[list[int], list[bool], dict[int, float]]:
    ids, labels = tokens.encode(Prompt(prompt)), {}
    for step in steps:
        # By themselves, so that no token holds the end of a step and what follows it.
        ids += tokens.encode_text(step.text)
        labels[len(ids)] = step.label
        ids += tokens.encode_text(step.separator)
    return ids, [place in labels for place in range(len(ids))], labels


def _chat(prompt: Messages, response: Messages, tokens: ChatTokenizer) -> tuple[list[int], list[bool]]:
    messages = [*prompt, *response]
    text = tokens.render(messages)
    spans = tokens.assistant_spans(messages)
    if spans is None:
        turns = [index for index in range(len(prompt), len(messages)) if _answers(messages[index])]
        spans = [_turn(messages, index, text, tokens) for index in turns]
    elif len(spans) != sum(map(_answers, messages)):
        marks = "{% generation %}"
        raise ValueError(
            f"has {len(spans)} turns with {marks} marks in the chat template; mark every answer."
        )
    else:
        spans = spans[sum(map(_answers, prompt)) :]
    ids, cuts = _encode_in_parts(text, [cut for span in spans for cut in span], tokens.encode_text)
    trained = [False] * len(ids)
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        ends = [place for place in range(start, end) if ids[place] in tokens.eos_ids]
        if not ends and end < len(ids) and ids[end] in tokens.eos_ids:
            ends = [end]  # {% generation %} may close before the end token.
        # White space that a template prints after the end token is no part of the answer.
        stop = ends[-1] + 1 if ends else end
        trained[start:stop] = [True] * (stop - start)
        if not ends and stop == len(ids) and tokens.eos_id is not None:
            ids.append(tokens.eos_id)  # The template ends no turn by itself; a sampler must learn to stop.
            trained.append(True)
    return ids, trained


def _answers(message: Mapping[str, str]) -> bool:
    return message["role"] == "assistant"


def _turn(
    messages: Sequence[dict[str, str]], index: int, text: str, tokens: ChatTokenizer
) -> tuple[int, int]:
    """Returns where the assistant's turn begins and ends in the rendered conversation."""
    start = tokens.render(messages[:index], add_generation_prompt=True)
    end = tokens.render(messages[: index + 1])
    if end.startswith(start) and text.startswith(end):
        return len(start), len(end)
    raise ValueError(
        f"is rendered by the chat template so that message {index} cannot be told from what is around it (it "
        "may drop thoughts of earlier turns); state a [model] chat_template with {% generation %} marks, or "
        "make each answer a row of its own."
    )


def _encode_in_parts(
    text: str, cuts: Sequence[int], encode: Callable[[str], list[int]]
) -> tuple[list[int], list[int]]:
    """Returns the ids of ``text``, and how many of them lie before each of the ``cuts`` (characters)."""
    ids = encode(text)
    heads = [encode(text[:cut]) for cut in cuts]
    if all(ids[: len(head)] == head for head in heads):
        return ids, [len(head) for head in heads]
    # A token would span a cut. A sampler sees the prompt alone, so the parts are tokenized by themselves.
    bounds = [0, *cuts, len(text)]
    parts = [encode(text[start:end]) for start, end in pairwise(bounds)]
    places = [0]
    for part in parts:
        places.append(places[-1] + len(part))
    return [token for part in parts for token in part], places[1:-1]
