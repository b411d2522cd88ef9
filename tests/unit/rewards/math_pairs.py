"""Pairs of a response and a reference answer, with the truth about their equivalence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["MathPair", "math_pairs"]


class MathPair(NamedTuple):
    """One line of math_pairs.jsonl."""

    style: str
    """The data set whose way of writing it follows."""
    kind: str
    response: str
    reference: str
    equivalent: bool


def math_pairs() -> list[MathPair]:
    """Returns the pairs of math_pairs.jsonl, which lies beside this file."""
    lines = Path(__file__).with_suffix(".jsonl").read_text("ascii").splitlines()
    return [MathPair(**json.loads(line)) for line in lines]
