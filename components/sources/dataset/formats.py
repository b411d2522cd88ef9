"""The formats of the source `dataset`: one record -> the rows of one group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Any, Literal

from titanrl.components.sources.records.rows import parse_messages
from titanrl.errors import did_you_mean
from titanrl.protocols import Example, Messages, ProcessStep

__all__ = ["COLUMNS", "OUT_KEYS", "PARSERS", "Format", "Record"]

Format = Literal["messages", "prompt_completion", "preference", "ranked", "unpaired", "stepwise"]

COLUMNS: dict[Format, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt_completion": ("prompt", "completion"),
    "preference": ("prompt", "chosen", "rejected", "margin", "answers", "scores", "head"),
    "ranked": ("prompt", "chosen", "rejected", "answers", "scores", "head"),
    "unpaired": ("prompt", "completion", "label"),
    "stepwise": ("prompt", "steps", "labels", "head"),
}
"""What each format reads."""

OUT_KEYS: dict[Format, tuple[str, ...]] = {
    "messages": (),
    "prompt_completion": (),
    "preference": ("margin",),
    "ranked": ("reward",),
    "unpaired": ("reward",),
    "stepwise": ("token_reward",),
}
"""Batch keys that each format brings beside the tokens."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file, read by titanrl's names for its columns; every read raises ValueError."""

    values: Mapping[str, Any]
    columns: Mapping[str, str]
    """titanrl's name of a column -> the file's, where they differ."""
    chat: bool = False
    """Whether plain texts become messages."""
    separator: str = "\n"
    """Text after each step."""

    def name(self, column: str) -> str:
        return self.columns.get(column, column)

    def has(self, column: str) -> bool:
        """Whether the record holds a value there; Arrow gives null where a row has none."""
        return self.values.get(self.name(column)) is not None

    def get(self, column: str) -> Any:
        name = self.name(column)
        if not self.has(column):
            keys = ", ".join(self.values) or "none"
            near = did_you_mean(name, self.values) if name not in self.values else "; it is null."
            raise ValueError(f"has no {name!r}{near or ';'} add it, or name it in columns. Keys: {keys}.")
        return self.values[name]

    def answer(self, column: str) -> Messages | str:
        """Returns an answer, or a whole conversation; the text of an answer may be empty."""
        return self.response(self.name(column), self.get(column))

    def response(self, place: str, value: Any) -> Messages | str:
        if isinstance(value, str):
            return ({"role": "assistant", "content": value},) if self.chat else value
        messages = parse_messages(place, value)
        if all(message["role"] != "assistant" for message in messages):
            raise ValueError(f"{place} holds no assistant message; nothing of it could be trained.")
        return messages

    def prompt(self, answers: Sequence[Messages | str]) -> tuple[Messages | str, list[Messages | str]]:
        """Returns (prompt, answers), both texts or both messages.

        Answers that begin with another role than assistant are whole conversations: their common beginning
        is the prompt, whatever the column prompt says.
        """
        conversations = [a for a in answers if not isinstance(a, str) and a[0]["role"] != "assistant"]
        if conversations and len(conversations) == len(answers):
            shortest = min(map(len, conversations)) - 1
            alike = takewhile(
                lambda turns: all(turn == turns[0] for turn in turns), zip(*conversations, strict=False)
            )
            shared = min(len(list(alike)), shortest)
            return conversations[0][:shared], [each[shared:] for each in conversations]
        prompt = self.context()
        if isinstance(prompt, str):
            if not all(isinstance(answer, str) for answer in answers):
                raise ValueError(
                    f"{self.name('prompt')} is a text and its answer a list of messages; make both alike, or "
                    "set chat = true."
                )
            return prompt, list(answers)
        return prompt, [
            ({"role": "assistant", "content": answer},) if isinstance(answer, str) else answer
            for answer in answers
        ]

    def head(self) -> str:
        """Returns the name of the value head that the record is about; empty: of none in particular."""
        if not self.has("head"):
            return ""
        value = self.get("head")
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.name('head')} must be a name of [model] heads, got {value!r:.80}.")
        return value

    def context(self) -> Messages | str:
        """Returns the column prompt, never empty."""
        value, name = self.get("prompt"), self.name("prompt")
        if not isinstance(value, str):
            return parse_messages(name, value)
        if not value.strip():
            raise ValueError(f"{name} must be a text or a list of messages, not empty, got {value!r}.")
        return ({"role": "user", "content": value},) if self.chat else value


def _messages(record: Record) -> tuple[Example, ...]:
    return (Example((), record.response(record.name("messages"), record.get("messages"))),)


def _prompt_completion(record: Record) -> tuple[Example, ...]:
    prompt, (answer,) = record.prompt([record.answer("completion")])
    return (Example(prompt, answer),)


def _preference(record: Record) -> tuple[Example, ...]:
    prompt, answers, scores = _ranking(record)
    has_scores, given = record.has("scores"), 0.0
    if record.has("margin"):
        given = _number(record, "margin", record.get("margin"))
    rows: list[Example] = []
    for better, worse in combinations(sorted(range(len(answers)), key=lambda i: -scores[i]), 2):
        if scores[better] > scores[worse]:
            margin = {"margin": scores[better] - scores[worse] if has_scores else given}
            rows += [Example(prompt, answers[each], margin, record.head()) for each in (better, worse)]
    return tuple(rows)


def _ranked(record: Record) -> tuple[Example, ...]:
    prompt, answers, scores = _ranking(record)
    return tuple(
        Example(prompt, answer, {"reward": score}, record.head())
        for answer, score in zip(answers, scores, strict=True)
    )


def _ranking(record: Record) -> tuple[Messages | str, list[Messages | str], list[float]]:
    """Returns the prompt, its answers, and their scores: those of the record, else how many each beats."""
    if record.has("answers"):
        name, given = record.name("answers"), record.get("answers")
        if not isinstance(given, list) or len(given) < 2:
            raise ValueError(f"{name} must be a list of two answers or more, best first, got {given!r:.80}.")
        answers = [record.response(f"{name}[{i}]", value) for i, value in enumerate(given)]
    elif record.has("chosen") or record.has("rejected"):
        answers = [record.answer("chosen"), record.answer("rejected")]
    else:
        raise ValueError(
            f"has neither {record.name('chosen')!r} and {record.name('rejected')!r} nor "
            f"{record.name('answers')!r}; name them in columns. Keys: {', '.join(record.values) or 'none'}."
        )
    scores = [float(len(answers) - 1 - place) for place in range(len(answers))]
    if record.has("scores"):
        name, stated = record.name("scores"), record.get("scores")
        if not isinstance(stated, list) or len(stated) != len(answers):
            raise ValueError(f"{name} must be a list of {len(answers)} numbers, got {stated!r:.80}.")
        scores = [_number(record, "scores", value) for value in stated]
        if min(scores) == max(scores):
            raise ValueError(f"{name} must not all be equal, got {stated!r:.80}; nothing is better then.")
    prompt, answers = record.prompt(answers)
    return prompt, answers, scores


def _unpaired(record: Record) -> tuple[Example, ...]:
    label = record.get("label")
    if label not in (True, False):
        raise ValueError(f"{record.name('label')} must be true (good) or false (bad), got {label!r:.80}.")
    prompt, (answer,) = record.prompt([record.answer("completion")])
    return (Example(prompt, answer, {"reward": float(label)}),)


def _stepwise(record: Record) -> tuple[Example, ...]:
    steps, labels = record.get("steps"), record.get("labels")
    name = record.name("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
        raise ValueError(f"{name} must be a list of texts, not empty, got {steps!r:.80}.")
    if not isinstance(labels, list) or len(labels) != len(steps):
        raise ValueError(
            f"{record.name('labels')} must be a list of {len(steps)} labels, got {labels!r:.80}."
        )
    judged = [float(x) if isinstance(x, bool) else _number(record, "labels", x) for x in labels]
    if not all(0 <= label <= 1 for label in judged):
        raise ValueError(f"{record.name('labels')} must lie in [0, 1], got {labels!r:.80}.")
    judged_steps = zip(steps, judged, strict=True)
    response = tuple(ProcessStep(step, label, record.separator) for step, label in judged_steps)
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
"""What makes rows of a record; raises ValueError with what is wrong with it."""
