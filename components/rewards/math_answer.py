"""Mathematical equivalence of the response with the reference answer, by symbolic algebra with a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from titanrl.components.rewards.math_text import based_number, rewritten
from titanrl.components.rewards.text import last_boxed, texts
from titanrl.registry import Range, register
from titanrl.runtime.worker_pool import map_with_timeout, max_map_seconds

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["MathAnswer", "grade"]


@register("reward", "math_answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer:
    r"""Mathematical equivalence of response and reference answer by math-verify: 1 if equivalent, else 0.

    The response's last balanced ``\boxed{...}`` is graded; without one, the value that math-verify
    extracts from the text. The reference answer is parsed by the same rules; without a dollar sign or a
    box it is parsed as a formula. Currency signs, spaces between groups of digits, ``1.5e3``, ``3 1/2``,
    repeating decimals, the Unicode minus and bases such as ``1010_2`` are read on both sides. Equivalence
    is tested in both directions, so the result does not depend on which side is the reference. Texts that
    cannot be parsed are equivalent to nothing, not even to each other. math-verify's own timeouts need
    the main thread's signals, so they are disabled; the worker pool enforces the timeout.

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


def grade(response: str, reference: str) -> float:
    """Returns 1 if response and reference answer are equivalent, else 0; runs in a worker, without a time
    limit.
    """
    from math_verify import verify

    if (verdict := _same_based_number(response, reference)) is not None:
        return float(verdict)
    has_math = "$" in reference.replace(r"\$", "") or last_boxed(reference) is not None
    expected = _parse(reference if has_math else f"${rewritten(reference)}$")
    parsed = _parse(response)
    if not expected or not parsed:
        return 0.0
    # An undecidable comparison raises; it counts as not equivalent, and the other direction may succeed.
    return float(
        verify(expected, parsed, timeout_seconds=None, raise_on_error=False)
        or verify(parsed, expected, timeout_seconds=None, raise_on_error=False)
    )


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


def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    boxed = last_boxed(text)
    if boxed is not None:
        # The content of a box is a formula; the plain-text parser would extract single numbers from text
        # that is not valid LaTeX.
        boxed = rewritten(boxed).replace("$", " ")
        text, targets = f"${' '.join(boxed.split())}$", [LatexExtractionConfig()]
    else:
        text, targets = rewritten(text), [LatexExtractionConfig(), ExprExtractionConfig()]
    expressions: list[Any] = parse(
        text, extraction_config=targets, fallback_mode="no_fallback", parsing_timeout=None
    )
    return expressions
