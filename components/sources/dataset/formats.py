"""Formats of the source `dataset`: parsers from one record to the rows of one group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Any, Literal

from titanrl.components.sources.records.rows import parse_messages, parse_tools
from titanrl.errors import did_you_mean
from titanrl.protocols import Example, Messages, ProcessStep

__all__ = ["COLUMNS", "OUT_KEYS", "PARSERS", "Format", "Record"]

Format = Literal["messages", "prompt_completion", "preference", "ranked", "unpaired", "stepwise"]

COLUMNS: dict[Format, tuple[str, ...]] = {
    "messages": ("messages", "tools"),
    "prompt_completion": ("prompt", "completion", "tools"),
    "preference": ("prompt", "chosen", "rejected", "margin", "answers", "scores", "head", "tools"),
    "ranked": ("prompt", "chosen", "rejected", "answers", "scores", "head", "tools"),
    "unpaired": ("prompt", "completion", "label", "tools"),
    "stepwise": ("prompt", "steps", "labels", "head"),
}
"""Columns that each format reads."""

OUT_KEYS: dict[Format, tuple[str, ...]] = {
    "messages": (),
    "prompt_completion": (),
    "preference": ("margin",),
    "ranked": ("reward",),
    "unpaired": ("reward",),
    "stepwise": ("token_reward",),
}
"""Batch keys that each format writes besides the tokens."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file, read by titanrl's column names; reads of invalid values raise ValueError."""

    values: Mapping[str, Any]
    columns: Mapping[str, str]
    """titanrl's name of a column -> its name in the file, where they differ."""
    chat: bool = False
    """Convert plain texts to messages."""
    separator: str = "\n"
    """Text after each process step."""

    def name(self, column: str) -> str:
        """Returns the file's name of a column."""
        return self.columns.get(column, column)

    def has(self, column: str) -> bool:
        """Returns whether the record has a value in a column; Arrow returns null for a missing value."""
        return self.values.get(self.name(column)) is not None

    def get(self, column: str) -> Any:
        """Returns the value of a column."""
        name = self.name(column)
        if not self.has(column):
            keys = ", ".join(self.values) or "none"
            suggestion = did_you_mean(name, self.values) if name not in self.values else "; it is null."
            raise ValueError(
                f"has no {name!r}{suggestion or ';'} add it, or name it in columns. Keys: {keys}."
            )
        return self.values[name]

    def response(self, column: str) -> Messages | str:
        """Returns the response of a column, or an entire conversation; the text of a response may be
        empty.
        """
        return self.parse_response(self.name(column), self.get(column))

    def parse_response(self, key: str, value: Any) -> Messages | str:
        """Returns a value as text or messages with at least one assistant turn; ``key`` names it in
        errors.
        """
        if isinstance(value, str):
            return ({"role": "assistant", "content": value},) if self.chat else value
        messages = parse_messages(key, value)
        if all(message["role"] != "assistant" for message in messages):
            raise ValueError(f"{key} has no assistant message, so it has no loss tokens; add one.")
        return messages

    def split_prompt(
        self, responses: Sequence[Messages | str]
    ) -> tuple[Messages | str, list[Messages | str]]:
        """Returns (prompt, responses), all of them texts or all of them messages.

        Responses that begin with a role other than assistant are entire conversations: their common prefix
        is the prompt, and the column prompt is ignored.
        """
        conversations = [r for r in responses if not isinstance(r, str) and r[0]["role"] != "assistant"]
        if conversations and len(conversations) == len(responses):
            longest_prompt = min(map(len, conversations)) - 1
            common = takewhile(
                lambda turns: all(turn == turns[0] for turn in turns), zip(*conversations, strict=False)
            )
            num_shared = min(len(list(common)), longest_prompt)
            return conversations[0][:num_shared], [each[num_shared:] for each in conversations]
        prompt = self.context()
        if isinstance(prompt, str):
            if not all(isinstance(response, str) for response in responses):
                raise ValueError(
                    f"{self.name('prompt')} is a text and its response a list of messages; make them alike, "
                    "or set chat = true."
                )
            return prompt, list(responses)
        return prompt, [
            ({"role": "assistant", "content": response},) if isinstance(response, str) else response
            for response in responses
        ]

    def head(self) -> str:
        """Returns the name of the value head that the record trains; empty: all heads."""
        if not self.has("head"):
            return ""
        value = self.get("head")
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.name('head')} must be a name of [model] heads, got {value!r:.80}.")
        return value

    def tools(self) -> tuple[dict[str, Any], ...]:
        """Returns the schemas of the functions that the record offers to the model."""
        return parse_tools(self.name("tools"), self.get("tools")) if self.has("tools") else ()

    def context(self) -> Messages | str:
        """Returns the column prompt, never empty."""
        value, name = self.get("prompt"), self.name("prompt")
        if not isinstance(value, str):
            return parse_messages(name, value)
        if not value.strip():
            raise ValueError(f"{name} must be a text or a list of messages, not empty, got {value!r}.")
        return ({"role": "user", "content": value},) if self.chat else value


def _messages(record: Record) -> tuple[Example, ...]:
    response = record.parse_response(record.name("messages"), record.get("messages"))
    return (Example((), response, tools=record.tools()),)


def _prompt_completion(record: Record) -> tuple[Example, ...]:
    prompt, (response,) = record.split_prompt([record.response("completion")])
    return (Example(prompt, response, tools=record.tools()),)


def _preference(record: Record) -> tuple[Example, ...]:
    prompt, responses, scores = _ranking(record)
    has_scores, stated_margin = record.has("scores"), 0.0
    if record.has("margin"):
        stated_margin = _number(record, "margin", record.get("margin"))
    rows: list[Example] = []
    for better, worse in combinations(sorted(range(len(responses)), key=lambda i: -scores[i]), 2):
        if scores[better] > scores[worse]:
            margin = {"margin": scores[better] - scores[worse] if has_scores else stated_margin}
            rows += [
                Example(prompt, responses[index], margin, record.head(), record.tools())
                for index in (better, worse)
            ]
    return tuple(rows)


def _ranked(record: Record) -> tuple[Example, ...]:
    prompt, responses, scores = _ranking(record)
    return tuple(
        Example(prompt, response, {"reward": score}, record.head(), record.tools())
        for response, score in zip(responses, scores, strict=True)
    )


def _ranking(record: Record) -> tuple[Messages | str, list[Messages | str], list[float]]:
    """Returns the prompt, its responses, and their scores: the record's, or the number of responses ranked
    lower.
    """
    if record.has("answers"):
        name, values = record.name("answers"), record.get("answers")
        if not isinstance(values, list) or len(values) < 2:
            raise ValueError(
                f"{name} must be a list of two responses or more, best first, got {values!r:.80}."
            )
        responses = [record.parse_response(f"{name}[{i}]", value) for i, value in enumerate(values)]
    elif record.has("chosen") or record.has("rejected"):
        responses = [record.response("chosen"), record.response("rejected")]
    else:
        raise ValueError(
            f"has neither {record.name('chosen')!r} and {record.name('rejected')!r} nor "
            f"{record.name('answers')!r}; name them in columns. Keys: {', '.join(record.values) or 'none'}."
        )
    scores = [float(len(responses) - 1 - rank) for rank in range(len(responses))]
    if record.has("scores"):
        name, stated = record.name("scores"), record.get("scores")
        if not isinstance(stated, list) or len(stated) != len(responses):
            raise ValueError(f"{name} must be a list of {len(responses)} numbers, got {stated!r:.80}.")
        scores = [_number(record, "scores", value) for value in stated]
        if min(scores) == max(scores):
            raise ValueError(
                f"{name} must not all be equal, got {stated!r:.80}; a ranking needs a difference."
            )
    prompt, responses = record.split_prompt(responses)
    return prompt, responses, scores


def _unpaired(record: Record) -> tuple[Example, ...]:
    label = record.get("label")
    if label not in (True, False):
        raise ValueError(f"{record.name('label')} must be true (good) or false (bad), got {label!r:.80}.")
    prompt, (response,) = record.split_prompt([record.response("completion")])
    return (Example(prompt, response, {"reward": float(label)}, tools=record.tools()),)


def _stepwise(record: Record) -> tuple[Example, ...]:
    steps, labels = record.get("steps"), record.get("labels")
    name = record.name("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
        raise ValueError(f"{name} must be a list of texts, not empty, got {steps!r:.80}.")
    if not isinstance(labels, list) or len(labels) != len(steps):
        raise ValueError(
            f"{record.name('labels')} must be a list of {len(steps)} labels, got {labels!r:.80}."
        )
    values = [float(x) if isinstance(x, bool) else _number(record, "labels", x) for x in labels]
    if not all(0 <= value <= 1 for value in values):
        raise ValueError(f"{record.name('labels')} must lie in [0, 1], got {labels!r:.80}.")
    labelled_steps = zip(steps, values, strict=True)
    response = tuple(ProcessStep(step, label, record.separator) for step, label in labelled_steps)
    return (Example(record.context(), response, head=record.head()),)


def _number(record: Record, column: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{record.name(column)} must be a finite number, got {value!r:.80}.")
    return float(value)


PARSERS: dict[Format, Callable[[Record], tuple[Example, ...]]] = {
    "messages": _messages,
    "prompt_completion": _prompt_completion,
    "preference": _preference,
    "ranked": _ranked,
    "unpaired": _unpaired,
    "stepwise": _stepwise,
}
"""Parser of each format; raises ValueError for an invalid record."""
