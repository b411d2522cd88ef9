"""Mathematical equivalence of the response with the reference answer, by symbolic algebra with a timeout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from titanrl.components.rewards.math_text import based_number, rewritten
from titanrl.components.rewards.math_units import measured, same_unit
from titanrl.components.rewards.text import last_boxed, texts
from titanrl.registry import Range, register
from titanrl.runtime.worker_pool import map_with_timeout, max_map_seconds

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["MathAnswer", "grade"]

PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
"""A number that needs no parser to be known as readable."""
INTEGER = re.compile(r"[1-9]\d{0,99}|0\d{0,99}")
AROUND = re.compile(r"\s*([^\w\s\\])\s*")
NUMBERS = re.compile(r"[(\[]?-?\d+(?:\.\d+)?(?:,-?\d+(?:\.\d+)?)*[)\]]?")
"""A number, a tuple, or an interval with finite ends."""
DOLLARS = re.compile(r"(?<!\\)\$([^$\n]+)\$")


@register("reward", "math_answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer:
    r"""Mathematical equivalence of response and reference answer by math-verify: 1 if equivalent, else 0.

    The response's last balanced ``\boxed{...}`` is graded; without one, the value that math-verify
    extracts from the text. The reference answer is parsed by the same rules; without a dollar sign or a
    box it is parsed as a formula. Currency signs, spaces between groups of digits, ``1.5e3``, ``3 1/2``,
    repeating decimals, Unicode symbols and bases such as ``1010_2`` are read on both sides. A unit behind
    a value, ``5\text{ cm}``, may be missing on one side; two different units are not equivalent, and
    values are not converted. ``50\%`` is equivalent to 50 and to 0.5. Equivalence is tested in both
    directions, so the result does not depend on which side is the reference. Texts that cannot be parsed
    are equivalent to nothing, not even to each other; `titanrl check --data` counts such references.
    math-verify's own timeouts need the main thread's signals, so they are disabled; the worker pool
    enforces the timeout.

    Source: math-verify 0.9.
    """

    timeout_seconds: Annotated[float, Range("(0, inf)")] = 5.0
    """Time limit per response, seconds; a response that exceeds it scores `failure_score`."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose grading failed or timed out."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: 1, 0 or failure_score."""
        from titanrl.ops.scores import fill_missing_scores

        return fill_missing_scores(self.scores(batch), self.failure_score)

    def max_seconds(self, num_rows: int) -> float:
        """Returns the longest time that scoring ``num_rows`` responses may take, seconds."""
        return max_map_seconds(num_rows, self.timeout_seconds)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why grading failed or timed out."""
        pairs = list(zip(texts(batch, "response"), texts(batch, "answer"), strict=True))
        outcomes = map_with_timeout(
            grade, pairs, timeout_seconds=self.timeout_seconds, imports=("math_verify", "sympy.solvers")
        )
        return [outcome.score for outcome in outcomes]

    def unreadable_references(self, references: Sequence[str]) -> list[str | None]:
        """Returns, for each reference answer, why no response can be equivalent to it; None if one can."""
        pairs = [(reference,) for reference in references]
        results = map_with_timeout(
            is_readable, pairs, timeout_seconds=self.timeout_seconds, imports=("math_verify", "sympy.solvers")
        )
        reasons = [result.failure for result in results]
        return [
            reason or (None if result.value else "it is no formula that math-verify reads")
            for reason, result in zip(reasons, results, strict=True)
        ]


def is_readable(reference: str) -> bool:
    """Returns whether a reference answer can be parsed; runs in a worker, without a time limit."""
    if PLAIN_NUMBER.fullmatch(reference.strip()) or based_number(last_boxed(reference) or reference):
        return True
    formula = _formula(reference, is_reference=True)
    if formula is None:
        return bool(_parse_text(reference))
    return bool(_parse_formula(measured(formula, "").value))


def grade(response: str, reference: str) -> float:
    """Returns 1 if response and reference answer are equivalent, else 0; runs in a worker, without a time
    limit.
    """
    if (verdict := _same_based_number(response, reference)) is not None:
        return float(verdict)
    given, expected = _formula(response), _formula(reference, is_reference=True)
    if given is None or expected is None:
        given_value, expected_value = given, expected
    else:
        one, other = measured(given, expected), measured(expected, given)
        if not same_unit(one.unit, other.unit):
            return 0.0
        if one.is_percent != other.is_percent:
            return float(
                _percent_equals(*((one.value, other.value) if one.is_percent else (other.value, one.value)))
            )
        given_value, expected_value = one.value, other.value
        if (verdict := _same_text(given_value, expected_value)) is not None:
            return float(verdict)
    return float(
        _equivalent(
            _parse_text(response) if given_value is None else _parse_formula(given_value),
            _parse_text(reference) if expected_value is None else _parse_formula(expected_value),
        )
    )


def _formula(text: str, *, is_reference: bool = False) -> str | None:
    """Returns the formula that a text consists of; None for prose, from which math-verify extracts one.

    The content of a box is a formula: the plain-text parser would extract single numbers from text that is
    not valid LaTeX.
    """
    boxed = last_boxed(text)
    if boxed is None:
        if not is_reference or "$" in text.replace(r"\$", ""):
            return None
        boxed = text.rpartition("####")[2]  # GSM8K's mark before the final answer.
    return " ".join(rewritten(boxed).replace("$", " ").split())


def _same_text(given: str, expected: str) -> bool | None:
    """Returns whether two formulas are equal where symbolic algebra is not needed; None where it is.

    Integers are compared as such. Equal numbers, and equal tuples and intervals of numbers, are equivalent.
    """
    given, expected = AROUND.sub(r"\1", given.strip()), AROUND.sub(r"\1", expected.strip())
    if INTEGER.fullmatch(given) and INTEGER.fullmatch(expected):
        return given.lstrip("0") == expected.lstrip("0")
    if given == expected and NUMBERS.fullmatch(given):
        return True
    return None


def _percent_equals(percentage: str, number: str) -> bool:
    """Returns whether a percentage is a number: 50% may be written as 50 and as 0.5."""
    expected = _parse_formula(number)
    return any(
        _equivalent(_parse_formula(value), expected)
        for value in (percentage, rf"\frac{{{percentage}}}{{100}}")
    )


def _equivalent(given: list[Any], expected: list[Any]) -> bool:
    from math_verify import verify

    if not given or not expected:
        return False
    given, expected = _with_imaginary_unit(given, expected)
    # An undecidable comparison raises; it counts as not equivalent, and the other direction may succeed.
    return bool(
        verify(expected, given, timeout_seconds=None, raise_on_error=False)
        or verify(given, expected, timeout_seconds=None, raise_on_error=False)
    )


def _with_imaginary_unit(*sides: list[Any]) -> list[list[Any]]:
    """Returns the expressions with the symbol i as the imaginary unit if an exponent contains it."""
    import sympy

    expressions = [each for side in sides for each in side if isinstance(each, sympy.Basic)]
    # The parser's symbols have assumptions, so they are compared by name.
    units = {symbol for each in expressions for symbol in each.free_symbols if str(symbol) == "i"}
    if not any(power.has(*units) for each in expressions for power in each.atoms(sympy.exp) if units):
        return list(sides)
    values = dict.fromkeys(units, sympy.I)
    return [[each.subs(values) if isinstance(each, sympy.Basic) else each for each in side] for side in sides]


def _same_based_number(response: str, reference: str) -> bool | None:
    """Returns whether both are the same number in the same base; None if the reference has no base.

    A response without a base is compared digit by digit.
    """
    expected = based_number(last_boxed(reference) or reference)
    if expected is None:
        return None
    text = last_boxed(response) or response
    if (found := based_number(text)) is not None:
        return found == expected
    digits = "".join(text.replace("$", "").split())
    return digits.isalnum() and based_number(f"{digits}_{expected[1]}") == expected


def _parse_formula(formula: str) -> list[Any]:
    # An empty formula would be `$$`, the begin of another one.
    return _parse(f"${formula}$", is_formula=True) if formula.strip() else []


def _parse_text(text: str) -> list[Any]:
    def without_unit(match: re.Match[str]) -> str:
        return f"${measured(match[1], '').value}$"

    return _parse(DOLLARS.sub(without_unit, rewritten(text)), is_formula=False)


def _parse(text: str, *, is_formula: bool) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # math-verify takes any of many letters at the end of a formula for a unit: 3t would be 3.
    settings = replace(LatexExtractionConfig().normalization_config, units=False)
    latex = LatexExtractionConfig(normalization_config=settings)
    targets = [latex] if is_formula else [latex, ExprExtractionConfig()]
    expressions: list[Any] = parse(
        text, extraction_config=targets, fallback_mode="no_fallback", parsing_timeout=None
    )
    return expressions
