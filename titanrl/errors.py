"""What titanrl raises at its users: every mistake of a file at once, each with its place and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ConfigError", "Problem", "SchemaError", "suggest"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the key path it was found at, and a sentence that says what is wrong and what to do."""

    where: str
    """Key path such as ``algorithm.loss.clip_high``; empty for the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


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


class SchemaError(ValueError):
    """A batch does not hold what its stage promises: a missing key, a wrong shape or dtype."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest of ``known``, or an empty string if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
