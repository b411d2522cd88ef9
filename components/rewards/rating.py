"""Reading of a judge's reply: one number or one choice in a known format, or a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["parse_choice", "parse_rating"]

NUMBER = r"[-+−]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
NAME = "rating|score|grade|mark|result|answer|verdict"
LABEL = rf"(?:(?:\w+\s+){{0,4}}?(?:{NAME})(?:\s+\w+){{0,3}}?\s*(?:[:=]|\bis\b)+\s*)?"
OUT_OF = rf"(?:/|out\s+of|of)\s*({NUMBER})"
STATED = re.compile(
    rf"{LABEL}(?:\[\[?|\(|\\boxed\s*\{{)?\s*({NUMBER})\s*(?:\]?\]|\)|\}})?"
    rf"\s*(?:\(?\s*{OUT_OF}\s*\)?|points?|stars?)?\s*[.!]?",
    re.IGNORECASE,
)
"""A line that is a rating: the number alone, after a label, or with the best rating after it."""
CHOSEN = re.compile(rf"{LABEL}(?:\[\[?|\()?\s*([A-Za-z]+)\s*(?:\]?\]|\))?\s*[.!]?", re.IGNORECASE)
"""A line that is a choice: a word alone, or after a label."""
MENTIONED = re.compile(rf"({NUMBER})(?:\s*\(?\s*{OUT_OF}(?:\s*\))?)?", re.IGNORECASE)
DIGIT = re.compile(r"\d")
"""Digits of all scripts."""


def parse_rating(reply: str, scale: tuple[float, float]) -> float | str:
    """Returns the rating that a judge's reply states, or why it states none.

    The last line counts if it is a rating and nothing else: `7`, `Score: 7`, `7 / 10`, `**7** (out of 10)`,
    `[[7]]`. Otherwise the whole reply must contain exactly one number, or one `7 / 10`. `10` stands for the
    upper end of the scale: a rating out of another number is not on the scale. Every other reply is
    ambiguous, for example `7-8` or `Rating: 5. I found 2 typos.`

    Args:
        reply: text of the reply.
        scale: lowest and highest rating.
    """
    lines = [line for line in (_plain(line) for line in reply.splitlines()) if line]
    if not lines:
        return _failure("gave no rating", scale, reply)
    match = STATED.fullmatch(lines[-1])
    if match is None:
        text = "\n".join(lines)
        mentions = list(MENTIONED.finditer(text))
        if not mentions:
            return _failure("gave no rating", scale, reply)
        match = mentions[0]
        # Digits beside the match: 7-8, 7,5, 3e2, "5 ... 2 typos".
        rest = text[: match.start()] + " " + text[match.end() :]
        beside = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        if len(mentions) > 1 or DIGIT.search(rest) or re.search(r"[\w%½¼¾]", beside):
            return _failure("gave an ambiguous rating", scale, reply)
    rating, best = _value(match[1]), match[2]
    if best is not None and _value(best) != scale[1]:
        return _failure(f"gave a rating out of {best}, not", scale, reply)
    if not scale[0] <= rating <= scale[1]:
        return _failure("gave no rating", scale, reply)
    return rating


def parse_choice(reply: str, choices: Mapping[str, float]) -> float | str:
    """Returns the number of the choice that a judge's reply ends with, or why it ends with none.

    The last line must be the choice and nothing else: `yes`, `Verdict: A`, `[[B]]`, `**tie**`.

    Args:
        reply: text of the reply.
        choices: choice in small letters -> its number.
    """
    lines = [line for line in (_plain(line) for line in reply.splitlines()) if line]
    match = CHOSEN.fullmatch(lines[-1]) if lines else None
    if match is not None and (choice := match[1].lower()) in choices:
        return choices[choice]
    expected = " or ".join(choices)
    return f"the model's last line is none of {expected}, its reply ends with {reply[-100:]!r}"


def _plain(line: str) -> str:
    """Returns a line without Markdown's marks, quotes and repeated white space."""
    return re.sub(r"\s+", " ", re.sub(r"[*_`#>$~\"'“”]+", "", line)).strip()


def _value(number: str) -> float:
    return float(number.replace("−", "-"))


def _failure(problem: str, scale: tuple[float, float], reply: str) -> str:
    low, high = scale
    return f"the model {problem} in [{low:g}, {high:g}], its reply ends with {reply[-100:]!r}"
