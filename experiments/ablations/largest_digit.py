"""The task of the ablations: name the largest of four digits, followed by any number of dots.

    prompt "3817:", correct responses "=8", "=8...", "=8........"

A model of 20,000 weights learns it in seconds. Dots do not change whether a response is correct, but the
policy may know whether it is. Any change in the length of correct or incorrect responses is therefore an
effect of the algorithm.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from titanrl.protocols import Example, Prompt
from titanrl.registry import Range, register

NUM_DIGITS = 4


@register("source", "largest_digit")
@dataclass(frozen=True, slots=True, kw_only=True)
class LargestDigit:
    """Asks for the largest of four random digits; the answer is that digit."""

    size: Annotated[int, Range("[1, inf)")] = 1000
    """Number of prompts, >= 1."""
    seed: Annotated[int, Range("[0, inf)")] = 0
    """Of the digits; held-out prompts have another one, so a tenth of them are among 1,000 others too."""

    def open(self) -> list[Prompt]:
        """Returns the prompts."""
        numbers = random.Random(self.seed)
        return [Prompt(f"{digits}:", max(digits)) for digits in _digits(numbers, self.size)]


@register("source", "largest_digit_answers")
@dataclass(frozen=True, slots=True, kw_only=True)
class LargestDigitAnswers:
    """Gives answers for supervised training: most of them wrong, of all lengths."""

    size: Annotated[int, Range("[1, inf)")] = 20000
    """Number of examples, >= 1."""
    seed: Annotated[int, Range("[0, inf)")] = 1
    """Of digits and answers."""
    right: Annotated[float, Range("[0, 1]")] = 0.3
    """Share of answers that give the largest digit, in [0, 1]; the others give any digit."""
    dots: Annotated[float, Range("[0, inf)")] = 3.0
    """Mean number of dots, >= 0; it is distributed geometrically."""
    longest: Annotated[int, Range("[0, inf)")] = 10
    """Most dots of an answer, >= 0."""
    on_overlong: Literal["error", "drop"] = "error"
    """What becomes of examples longer than [training] seq_len."""
    out_keys: ClassVar[tuple[str, ...]] = ()
    is_paired: ClassVar[bool] = False

    def open(self) -> Answers:
        """Returns the examples."""
        numbers = random.Random(self.seed)
        rows = []
        for digits in _digits(numbers, self.size):
            count = 0
            while count < self.longest and numbers.random() < self.dots / (1 + self.dots):
                count += 1
            digit = max(digits) if numbers.random() < self.right else numbers.choice("0123456789")
            rows.append(Example(f"{digits}:", f"={digit}" + "." * count))
        return Answers(tuple(rows))


@dataclass(frozen=True, slots=True)
class Answers:
    """Examples of one row each."""

    rows: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        return (self.rows[index],)

    def place(self, index: int) -> str:
        return f"largest_digit_answers:{index}"


def _digits(numbers: random.Random, size: int) -> list[str]:
    return ["".join(numbers.choices("0123456789", k=NUM_DIGITS)) for _ in range(size)]
