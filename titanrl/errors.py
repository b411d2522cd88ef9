"""Errors for users: all mistakes of a file at once, each with its location and a remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = [
    "ConfigError",
    "Problem",
    "SchemaError",
    "TrainingError",
    "closest_matches",
    "did_you_mean",
    "edit_distance_one",
    "fold_faults",
]

MAX_PLACES = 3
"""Places that are named for a fault of several rows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, shown as ``[where] key message``; the message: what is wrong, got what; what to do."""

    where: str
    """Path of the table, such as ``algorithm.loss``; empty for the top level or for no table at all."""
    message: str
    key: str = ""
    """Key in that table; empty if the message is about the table or begins with the key."""
    origin: str = ""
    """Where the value was set, if not in the file in the heading: a base file, or ``--set``."""

    def under(self, table: str) -> Problem:
        """Returns the same mistake with its path extended: its table is inside ``table``."""
        return replace(self, where=f"{table}.{self.where}" if self.where else table)

    def __str__(self) -> str:
        where, key = (part if part.isprintable() else ascii(part) for part in (self.where, self.key))
        location = " ".join(part for part in (f"[{where}]" if where else "", key) if part)
        return f"{location} {self.message}".lstrip() + (f" (from {self.origin})" if self.origin else "")


class ConfigError(ValueError):
    """The experiment cannot be run as written; ``problems`` lists every mistake found."""

    def __init__(self, problems: str | Problem | Iterable[Problem], *, file: str | None = None) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        elif isinstance(problems, Problem):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.file = file
        lines = [str(problem) for problem in self.problems]
        if file is None:
            text = "\n".join(lines)
        else:
            count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
            text = f"{file}: {count}\n" + "\n".join(f"  {line}" for line in lines)
        super().__init__(text)


class TrainingError(RuntimeError):
    """A run cannot continue, for a reason that its experiment file can change; its files are complete."""


class SchemaError(ValueError):
    """A batch violates the guarantees of its stage: a missing key, a wrong shape or dtype."""


def closest_matches(word: str, known: Iterable[str]) -> list[str]:
    """Returns the known names that begin with ``word`` or are one edit away from it, else the most similar.

    For example, "ppo_clip" begins with "ppo".
    """
    names = {name.casefold(): name for name in known}
    word = word.casefold()
    extensions = sorted(original for name, original in names.items() if name.startswith(f"{word}_"))
    misspelled = sorted(original for name, original in names.items() if edit_distance_one(word, name))
    if extensions or misspelled:
        return [*extensions, *misspelled]
    return [names[match] for match in difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)]


def edit_distance_one(left: str, right: str) -> bool:
    """Whether one insertion, deletion, replacement or swap of neighbours turns ``left`` into ``right``."""
    if abs(len(left) - len(right)) > 1:
        return False
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    a, b = left[start:], right[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[2:] == b[2:] and a[:2] == b[1::-1])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest of ``known``, or an empty string if none is near."""
    names = closest_matches(word, known)
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def fold_faults(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line per kind of fault, in the order of its first row.

    Faults are of one kind if they differ in numbers only. A fault of one row reads ``place: text``; one of
    several also has their number and further places.

    Args:
        faults: place, such as ``rows.jsonl:3``, and text of each.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for place, text in faults:
        kinds.setdefault(re.sub(r"\d+", "0", text), []).append((place, text))
    return [_line(rows) for rows in kinds.values()]


def _line(rows: list[tuple[str, str]]) -> str:
    place, text = rows[0]
    if len(rows) == 1:
        return f"{place}: {text}"
    file, _, _ = place.rpartition(":")
    others = [other.removeprefix(f"{file}:") if file else other for other, _ in rows[1:MAX_PLACES]]
    more = ", ..." if len(rows) > MAX_PLACES else ""
    return f"{place}: {text} ({len(rows):,} rows; also {', '.join(others)}{more})"
