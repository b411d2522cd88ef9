r"""Notation of numbers that math-verify does not read, rewritten to LaTeX that it reads.

Standard library only, because grading workers import it.
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["based_number", "rewritten"]

MINUS = str.maketrans({"\u2212": "-", "\u2010": "-", "\u2011": "-", "\uff0d": "-"})
CURRENCY = re.compile(r"\\\$|\\(?:pounds|euro)\b|[\u20ac\u00a3\u00a5\u20b9]")
SEPARATOR = r"(?:\\[,!;: ]|~|\{,\}|[\u00a0\u2009\u202f ])"
GROUPED = re.compile(rf"(?<![\w.])\d{{1,3}}(?:{SEPARATOR}\d{{3}})+(?![\w/])")
SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])")
MIXED = re.compile(r"(?<![\w.})/^_])(\d+)(?:\s+|\\[,; ])(\d+)\s*/\s*(\d+)(?![\w/.])")
OVERLINED = re.compile(r"(?<![\w.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
BRACKETED = re.compile(r"(?<![\w.])(\d*)\.(\d*)\((\d+)\)(?!\s*[\w(\\])")
ELLIPSIS = re.compile(r"(?<![\w.])(\d*)\.(\d*?)(\d{1,6}?)\3+(?:\.\.\.|\\[lc]?dots|\u2026)")
BASED = re.compile(r"\s*\(?([0-9A-Za-z]+)\)?_\{?\s*(?:\\text\s*\{)?(\d{1,2})\}*\s*")


def rewritten(text: str) -> str:
    r"""Returns a text with its numbers in LaTeX that math-verify reads.

    Rewritten are: the Unicode minus, currency signs, thin spaces and other separators between groups of three
    digits, ``1.5e3``, mixed numbers such as ``3 1/2``, and repeating decimals: ``0.\overline{3}``, ``0.(3)``
    and ``0.333...``.
    """
    text = CURRENCY.sub("", text.translate(MINUS))
    text = GROUPED.sub(lambda match: re.sub(SEPARATOR, "", match[0]), text)
    text = SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)
    text = MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    for pattern in (OVERLINED, BRACKETED, ELLIPSIS):
        text = pattern.sub(lambda match: _repeating(*match.groups()), text)
    return text


def based_number(text: str) -> tuple[int, int] | None:
    """Returns value and base of a number with a base as subscript, ``1010_2``; None for other texts.

    Args:
        text: the whole text.
    """
    match = BASED.fullmatch(text.replace("$", ""))
    if match is None or not 2 <= (base := int(match[2])) <= 36:
        return None
    try:
        return int(match[1], base), base
    except ValueError:  # A digit that the base does not have.
        return None


def _repeating(whole: str, start: str, period: str) -> str:
    value = Fraction(int((whole or "0") + start or "0"), 10 ** len(start))
    value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
