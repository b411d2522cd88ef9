"""Whether the answer is mathematically the reference, by symbolic algebra under a deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from titanrl.components.rewards.text import last_boxed, texts
from titanrl.errors import check_range
from titanrl.registry import register
from titanrl.runtime.worker_pool import map_with_timeout

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["MathAnswer", "grade"]


@register("reward", "math_answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer:
    r"""Returns 1 iff math-verify finds the response equivalent to the answer, else 0.

    The response's last balanced ``\boxed{...}`` is graded; without one, what math-verify extracts from the
    text. The answer is read by the same rules; without a dollar sign or a box it is taken as a formula.
    Equivalence is asked in both directions, so it doesn't depend on which side is the reference. Unparsable
    texts equal nothing, not even each other. math-verify's own timeouts need the main thread's signals: they
    are off, the deadline is the pool's.

    Source: math-verify 0.9.
    """

    timeout_seconds: float = 5.0
    """Time limit of one answer, seconds, > 0; a late one scores `failure`."""
    failure: float = 0.0
    """Score of an answer on which grading failed or was late."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __post_init__(self) -> None:
        check_range(self, "timeout_seconds", "(0, inf)")
        check_range(self, "failure", "(-inf, inf)")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: 1, 0 or failure."""
        from titanrl.ops.scores import filled

        return filled(self.scores(batch), self.failure)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns one score a row, or why grading failed or was late."""
        pairs = list(zip(texts(batch, "response"), texts(batch, "answer"), strict=True))
        outcomes = map_with_timeout(
            grade, pairs, timeout_seconds=self.timeout_seconds, imports=("math_verify", "sympy.solvers")
        )
        return [outcome.score for outcome in outcomes]


def grade(response: str, answer: str) -> float:
    """Returns 1 iff response and answer are equivalent; runs in a worker, may take forever."""
    from math_verify import verify

    wanted = _parse(answer if "$" in answer or last_boxed(answer) is not None else f"${answer}$")
    found = _parse(response)
    if not wanted or not found:
        return 0.0
    # A comparison that can't be decided raises; that is no equivalence, and the other direction may still
    # decide.
    return float(
        verify(wanted, found, timeout_seconds=None, raise_on_error=False)
        or verify(found, wanted, timeout_seconds=None, raise_on_error=False)
    )


def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    boxed = last_boxed(text)
    if boxed is not None:
        # Inside a box all is formula; the plain reader would take single numbers out of what LaTeX can't
        # read.
        text, targets = f"${' '.join(boxed.replace('$', ' ').split())}$", [LatexExtractionConfig()]
    else:
        targets = [LatexExtractionConfig(), ExprExtractionConfig()]
    found: list[Any] = parse(
        text, extraction_config=targets, fallback_mode="no_fallback", parsing_timeout=None
    )
    return found
