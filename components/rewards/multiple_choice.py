"""Letter of a multiple-choice question, as models state it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch

from titanrl.components.rewards.text import last_boxed, last_tag, texts
from titanrl.ops.columns import lookup
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict

__all__ = ["MultipleChoice", "choice_of"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKS = re.compile(r"\*\*|__|`|\$|\\(?:text|textbf|mathrm|mathbf|bf)\b\s*|[{}]")
"""Markup around a letter."""
ONE = r"[\(\[<\"'\u201c]?\s*(?P<letter>[A-Za-z])\s*(?:[\)\]>\"'\u201d]|(?=[.:,;!?\s-]|$))"
STATED = re.compile(
    r"(?:\b(?:final\s+answer|correct\s+(?:answer|option|choice)|answer|option|choice)\b"
    r"(?:\s+(?:choice|option|letter))?\s*(?:\bis\b|:|=|\bwould\s+be\b|\bmust\s+be\b|\bshould\s+be\b)+\s*"
    r"(?::\s*)?(?:\b(?:option|choice|letter)\b\s*:?\s*)?" + ONE + r")",
    re.IGNORECASE,
)
"""A statement such as `the correct answer is (B)` or `Answer: B`."""
CHOSEN = re.compile(
    r"\b(?:choose|select|pick|go\s+with|chose)\s+(?:\b(?:option|choice|answer|letter)\b\s*)?" + ONE,
    re.IGNORECASE,
)
IS_CORRECT = re.compile(
    r"(?:\b(?:option|choice|answer)\b\s*)?(?:[\(\[]\s*)?(?P<letter>\b[A-Z])\s*[\)\]]?\s+is\s+"
    r"(?:the\s+)?(?:correct|right|best|final)\b(?!\s+(?:if|only))"
)
LINE_ALONE = re.compile(r"\s*[\(\[]?\s*(?P<letter>[A-Za-z])\s*[\)\]]?\s*[.:]?\s*")


@register("reward", "multiple_choice")
@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoice:
    r"""Letter that the response chooses, compared with the reference answer: 1 if equal, else 0.

    The letter is read from the first of these that the response has, and from the last one of its kind:

        \boxed{B}, <answer>B</answer>
        a statement: `the correct answer is (B)`, `Answer: B`, `I choose option B`, `B is correct`
        the text of one choice behind such a statement, where the row has the choices
        a last or first line that is a letter alone: `B`, `(B)`, `B.`, or begins with it: `B) Paris`

    Markup such as `**B**` is removed. A letter beyond the number of choices, and a box with several
    letters, count as no choice. The reference answer is a letter, the index of a choice from 0, or the
    text of a choice.

    Source: usual extraction for MMLU-like data, arXiv 2009.03300.
    """

    num_choices: Annotated[int, Range("[2, 26]")] = 4
    """Number of choices of a row without a column of choices."""
    choices: str = "choices"
    """Column with the texts of the choices, a list or a mapping with `text`; dots reach into tables. Rows
    without it have num_choices."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose reference answer is no choice."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("text", "response"),
        ("text", "answer"),
        ("text", "columns"),
    )

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: 1, 0 or failure_score."""
        return fill_missing_scores(self.scores(batch), self.failure_score)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or why its reference answer is no choice."""
        rows = zip(texts(batch, "response"), texts(batch, "answer"), batch["text", "columns"], strict=True)
        return [self._score(*row) for row in rows]

    def _score(self, response: str, reference: str, columns: Mapping[str, Any]) -> float | str:
        choices = _texts_of(lookup(columns, self.choices))
        letters = LETTERS[: min(len(choices), 26) or self.num_choices]
        expected = _letter_of(reference, letters, choices)
        if expected is None:
            return f"the reference answer {reference!r:.100} is none of {letters[0]} to {letters[-1]}"
        return float(choice_of(response, letters, choices) == expected)

    def answer_of(self, response: str) -> str | None:
        """Returns the letter that a response chooses; equal letters count together in majority voting."""
        return choice_of(response, LETTERS[: self.num_choices], ())


def choice_of(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """Returns the letter that a response chooses; None without one.

    Args:
        response: the text.
        letters: letters of the choices.
        choices: texts of the choices; empty if unknown.
    """
    enclosed = last_boxed(response)
    if enclosed is None:
        enclosed = last_tag(response, "answer")
    if enclosed is not None:
        return _alone(_unmarked(enclosed), letters, choices)
    text = _unmarked(response)
    matches = [match for pattern in (STATED, CHOSEN, IS_CORRECT) for match in pattern.finditer(text)]
    matches = [match for match in matches if _is_choice(match, letters)]
    if matches:
        return max(matches, key=lambda match: match.end())["letter"].upper()
    if (stated := _stated_text(text, letters, choices)) is not None:
        return stated
    lines = [line for line in text.splitlines() if line.strip()]
    for line in (*lines[-1:], *lines[:1]):
        if (letter := _alone(line, letters, choices)) is not None:
            return letter
    return None


def _is_choice(match: re.Match[str], letters: str) -> bool:
    """Returns whether a letter is one of the choices; `a` and `i` in small are words, unless in brackets."""
    letter = match["letter"]
    before = match.string[match.start("letter") - 1 : match.start("letter")]
    after = match.string[match.end("letter") : match.end("letter") + 40]
    is_word = letter.islower() and before not in ("(", "[") and re.match(r"\s+\w", after) is not None
    # `the answer is A or B` and `A and B are correct` choose no single letter.
    is_several = re.match(r"\s*[\)\]]?\s*(?:,|/|or\b|and\b|&)\s*[\(\[]?\s*[A-Z]\b(?!')", after) is not None
    # `The answer is A train`: an article, not a letter.
    is_article = letter == "A" and re.match(r"\s+[a-z]", after) is not None and before not in ("(", "[")
    is_article = is_article and re.match(r"\s+(?:because|since|as|is|for|due|which|and|so)\b", after) is None
    return letter.upper() in letters and not is_word and not is_several and not is_article


def _alone(line: str, letters: str, choices: Sequence[str]) -> str | None:
    """Returns the letter of a line that is a letter, begins with one and a mark, or is a choice's text."""
    match = LINE_ALONE.fullmatch(line)
    if match is None:
        match = re.match(r"\s*[\(\[]?\s*(?P<letter>[A-Za-z])\s*(?:[\)\]]|[.:](?=\s))\s*\S", line)
    if match is not None:
        letter = match["letter"].upper()
        return letter if letter in letters else None
    return _of_text(line, letters, choices)


def _stated_text(text: str, letters: str, choices: Sequence[str]) -> str | None:
    """Returns the choice whose text follows `answer is` or `answer:`."""
    pattern = r"\banswer\b\s*(?:is|:)+\s*(?::\s*)?(.+)"
    stated = [match[1] for match in re.finditer(pattern, text, re.IGNORECASE)] if choices else []
    return _of_text(stated[-1], letters, choices) if stated else None


def _of_text(text: str, letters: str, choices: Sequence[str]) -> str | None:
    plain = _plain(text)
    equal = [
        letter for letter, choice in zip(letters, choices, strict=False) if plain and _plain(choice) == plain
    ]
    return equal[0] if len(equal) == 1 else None


def _letter_of(reference: str, letters: str, choices: Sequence[str]) -> str | None:
    text = _unmarked(reference).strip()
    if (letter := _alone(text, letters, choices)) is not None:
        return letter
    if text.isdecimal() and text.isascii() and int(text) < len(letters):
        return letters[int(text)]
    return None


def _texts_of(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        value = value.get("text", list(value.values()))
    if isinstance(value, str) or not isinstance(value, Iterable):
        return []
    return [str(each.get("text", "")) if isinstance(each, Mapping) else str(each) for each in value]


def _unmarked(text: str) -> str:
    return MARKS.sub("", text)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .\"'")
