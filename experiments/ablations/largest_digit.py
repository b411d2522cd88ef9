"""The task of the ablations: name the largest of four digits, followed by any number of dots.

    prompt "3817:", correct responses "=8", "=8...", "=8........"

A model of 20,000 weights learns it in seconds. The dots do not affect correctness, but their number can
depend on it, because they come after the digit. Differences between algorithms in the length of correct or
incorrect responses are therefore caused by the algorithms.
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
    """Prompts for the largest of four random digits; the reference answer is that digit."""

    size: Annotated[int, Range("[1, inf)")] = 1000
    """Number of prompts, >= 1."""
    seed: Annotated[int, Range("[0, inf)")] = 0
    """Seed of the digits. A tenth of the prompts of one seed occur among 1,000 prompts of another."""

    def open(self) -> list[Prompt]:
        """Returns the prompts."""
        numbers = random.Random(self.seed)
        return [Prompt(f"{digits}:", max(digits)) for digits in _digits(numbers, self.size)]


@register("source", "largest_digit_demonstrations")
@dataclass(frozen=True, slots=True, kw_only=True)
class LargestDigitDemonstrations:
    """Responses of all lengths for supervised training, most of them incorrect."""

    size: Annotated[int, Range("[1, inf)")] = 20000
    """Number of examples, >= 1."""
    seed: Annotated[int, Range("[0, inf)")] = 1
    """Seed of the digits and responses."""
    correct_fraction: Annotated[float, Range("[0, 1]")] = 0.3
    """Fraction of responses that give the largest digit, in [0, 1]; the rest give a random digit."""
    mean_dots: Annotated[float, Range("[0, inf)")] = 3.0
    """Mean number of dots before truncation, >= 0; the distribution is geometric."""
    max_dots: Annotated[int, Range("[0, inf)")] = 10
    """Maximum number of dots, >= 0."""
    on_overlong: Literal["error", "drop"] = "error"
    """Whether examples longer than [training] seq_len are an error or are dropped."""
    out_keys: ClassVar[tuple[str, ...]] = ()
    is_paired: ClassVar[bool] = False

    def open(self) -> Demonstrations:
        """Returns the examples."""
        numbers = random.Random(self.seed)
        rows = []
        for digits in _digits(numbers, self.size):
            count = 0
            while count < self.max_dots and numbers.random() < self.mean_dots / (1 + self.mean_dots):
                count += 1
            digit = max(digits) if numbers.random() < self.correct_fraction else numbers.choice("0123456789")
            rows.append(Example(f"{digits}:", f"={digit}" + "." * count))
        return Demonstrations(tuple(rows))


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Examples of one row each."""

    rows: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        return (self.rows[index],)

    def place(self, index: int) -> str:
        return f"largest_digit_demonstrations:{index}"


def _digits(numbers: random.Random, size: int) -> list[str]:
    return ["".join(numbers.choices("0123456789", k=NUM_DIGITS)) for _ in range(size)]
