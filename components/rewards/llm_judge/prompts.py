"""Prompts of a judge, and the requests that score one response."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["TEMPLATES", "Criterion", "criteria_of", "filled", "opponents"]

TEMPLATES = {
    "rating": """\
Rate how good the answer to the question is, from 1 (useless) to 10 (perfect).

Question:
{prompt}

Answer:
{response}

Think about it briefly, then end with the rating, a number alone.""",
    "rubric": """\
Does the answer to the question meet the criterion?

Question:
{prompt}

Answer:
{response}

Criterion:
{criterion}

Think about it briefly, then end with a line that is yes or no.""",
    "pairwise": """\
Which answer to the question is better?

Question:
{prompt}

Answer A:
{first}

Answer B:
{second}

Think about it briefly, then end with a line that is A, B or tie.""",
}
"""Mode of the judge -> its default template."""
FIELD = re.compile(r"\{(prompt|response|answer|criterion|first|second)\}")
TEXT_KEYS = ("criterion", "description", "text", "requirement")
WEIGHT_KEYS = ("weight", "points")


class Criterion(NamedTuple):
    """One entry of a rubric."""

    text: str
    weight: float


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Returns a template with its placeholders replaced, in one pass: a text may itself contain {answer}.

    Lone surrogates, which have no form in UTF-8, become question marks.
    """
    text = FIELD.sub(lambda match: texts.get(match[1], match[0]), template)
    return text.encode("utf-8", "replace").decode()


def criteria_of(value: Any) -> list[Criterion]:
    """Returns the criteria of a row's rubric.

    Args:
        value: a list, or JSON of one: texts, or mappings with `criterion` (or `description`, `text`,
            `requirement`) and `weight` (or `points`; 1 if absent).

    Raises:
        ValueError: it is no such list, or no weight is positive.
    """
    entries = json.loads(value) if isinstance(value, str) else value
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ValueError(f"must be a list of criteria, got {entries!r:.200}")
    criteria = [_criterion(entry) for entry in entries]
    if not any(criterion.weight > 0 for criterion in criteria):
        raise ValueError("must have a criterion of positive weight")
    return criteria


def _criterion(entry: Any) -> Criterion:
    if isinstance(entry, str):
        return Criterion(entry, 1.0)
    if isinstance(entry, Mapping):
        text = next((entry[key] for key in TEXT_KEYS if isinstance(entry.get(key), str)), None)
        weight = next((entry[key] for key in WEIGHT_KEYS if entry.get(key) is not None), 1.0)
        if text is not None and isinstance(weight, int | float) and abs(weight) < float("inf"):
            return Criterion(text, float(weight))
    raise ValueError(f"must have texts, or mappings with `criterion` and `weight`, got {entry!r:.200}")


def opponents(group_id: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields, for each row, the rows of its group that it is compared with: the following ones, cyclically.

    Args:
        group_id: group of each row.
        most: largest number of opponents of a row.
    """
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(group_id):
        rows.setdefault(group, []).append(row)
    for row, group in enumerate(group_id):
        others = rows[group]
        start = others.index(row)
        yield [others[(start + step) % len(others)] for step in range(1, min(most, len(others) - 1) + 1)]
