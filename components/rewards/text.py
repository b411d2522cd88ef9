"""Texts of a batch, and what rewards cut out of them. Standard library only: grading workers import it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["last_boxed", "last_number", "last_number_text", "last_tag", "texts"]

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+")
BOXED = re.compile(r"\\boxed\s*\{")
BRACES = re.compile(r"[{}]")


def texts(batch: TensorDict, name: str) -> list[str]:
    """Returns ("text", name), one string a row."""
    return [str(text) for text in batch["text", name]]


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last balanced ``\boxed{...}``; None if there is none.

    White space before the brace is allowed, nested braces are counted, an unclosed box is ignored.
    """
    starts = [match.end() for match in BOXED.finditer(text)]
    if not starts:
        return None
    # One pass from the first box on: closing[p] = where the brace opened just before p closes.
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
    """Returns the last number written in ``text``, thousands commas removed; None if there is none."""
    found = last_number_text(text)
    return None if found is None else float(found)


def last_number_text(text: str) -> str | None:
    """Returns the last number as it is written, thousands commas removed; None if there is none."""
    found = [match[0] for match in NUMBER.finditer(text)]
    return found[-1].replace(",", "") if found else None


def last_tag(text: str, tag: str) -> str | None:
    """Returns the content of the last ``<tag>...</tag>`` of neighbouring tags; None if there is none."""
    content, start = None, None
    for match in re.finditer(f"<(/?){re.escape(tag)}>", text):
        if not match[1]:
            start = match.end()
        elif start is not None:
            content, start = text[start : match.start()], None
    return content
