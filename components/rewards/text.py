"""Extraction of boxes, numbers and tags from texts; standard library only, because grading workers import
it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["last_boxed", "last_number", "last_number_text", "last_tag", "texts"]

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+")
VALUE = re.compile(
    r"(?<![\w./])[-+]?\d+/0*[1-9]\d*(?![\w/]|\.\d)"
    r"|(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+(?![\w.]))?"
)
"""A fraction, or a number with an exponent or without."""
MINUS = str.maketrans("\u2212\u2010\u2011\uff0d", "----")
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
BRACES = re.compile(r"[{}]")


def texts(batch: TensorDict, name: str) -> list[str]:
    """Returns the strings of the batch key ("text", name), one per row."""
    return [str(text) for text in batch["text", name]]


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last balanced ``\boxed{...}`` or ``\fbox{...}``; None if there is none.

    White space before the brace is allowed, nested braces are matched, an unclosed box is ignored.
    """
    starts = [match.end() for match in BOXED.finditer(text)]
    if not starts:
        return None
    # One pass from the first box on: closing[p] is the position where the brace opened before p closes.
    closing: dict[int, int] = {}
    open_braces: list[int] = []
    for match in BRACES.finditer(text, starts[0] - 1):
        if match[0] == "{":
            open_braces.append(match.end())
        elif open_braces:
            closing[open_braces.pop()] = match.start()
    for start in reversed(starts):
        if start in closing:
            return text[start : closing[start]]
    return None


def last_number(text: str) -> float | None:
    """Returns the last number in ``text``; None if there is none.

    Thousands separators are removed; ``3/4``, ``1.5e3`` and the Unicode minus are read.
    """
    numbers = [match[0] for match in VALUE.finditer(text.translate(MINUS))]
    if not numbers:
        return None
    above, slash, below = numbers[-1].replace(",", "").partition("/")
    return float(above) / float(below) if slash else float(above)


def last_number_text(text: str) -> str | None:
    """Returns the last number as it is written, without thousands separators; None if there is none."""
    numbers = [match[0] for match in NUMBER.finditer(text)]
    return numbers[-1].replace(",", "") if numbers else None


def last_tag(text: str, tag: str) -> str | None:
    """Returns the content of the last ``<tag>...</tag>`` with no such tag inside; None if there is none."""
    content, start = None, None
    for match in re.finditer(f"<(/?){re.escape(tag)}>", text):
        if not match[1]:
            start = match.end()
        elif start is not None:
            content, start = text[start : match.start()], None
    return content
