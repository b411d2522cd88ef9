"""The task's own scorer of reasoning-gym, on what is extracted from the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from titanrl.components.rewards.text import last_boxed, last_number_text, last_tag, texts
from titanrl.components.sources.reasoning_gym_tasks import check_task, decode_entry
from titanrl.errors import check_range
from titanrl.registry import register
from titanrl.runtime.worker_pool import map_with_timeout

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["ReasoningGym", "extracted", "grade"]

Extract = Literal["auto", "answer_tag", "boxed", "number", "last_line", "whole"]


@register("reward", "reasoning_gym")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    r"""Returns the task's score of the extracted answer, clipped to [0, 1]; nothing extracted: 0.

    auto extracts the last `<answer>...</answer>`, else the last balanced ``\boxed{...}``, else all; the other
    choices take just one form. number, the last number of the response, suits arithmetic tasks and models too
    weak for tags: many scorers give part of the score when the right answer is only contained in the text.

    The batch key ("text", "answer") holds the task's entry as the source `reasoning_gym` wrote it, or a bare
    answer.

    Source: reasoning-gym, arXiv 2505.24760.
    """

    dataset: str
    """Name of the task, such as `chain_sum`."""
    extract: Extract = "auto"
    """What of the response is scored."""
    timeout_seconds: float = 5.0
    """Time limit of one answer, seconds, > 0; a late one scores `failure`."""
    failure: float = 0.0
    """Score of an answer on which the scorer failed or was late."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __post_init__(self) -> None:
        check_task(self.dataset)
        check_range(self, "timeout_seconds", "(0, inf)")
        check_range(self, "failure", "(-inf, inf)")

    def answer_of(self, response: str) -> str | None:
        """Returns what is scored, None where nothing is found: answers that say the same vote together."""
        return extracted(self.extract, response)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: the score in [0, 1], or failure."""
        from titanrl.ops.scores import filled

        return filled(self.scores(batch), self.failure)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns one score a row, or why the scorer failed or was late."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        items = [(self.dataset, self.extract, *pair) for pair in pairs]
        outcomes = map_with_timeout(
            grade, items, timeout_seconds=self.timeout_seconds, imports=("reasoning_gym",)
        )
        return [outcome.score for outcome in outcomes]


def grade(dataset: str, extract: Extract, response: str, answer: str) -> float:
    """Returns the task's score of one response, in [0, 1]; runs in a worker."""
    given = extracted(extract, response)
    if given is None:
        return 0.0
    score = float(_scorer(dataset).score_answer(given, decode_entry(answer)))
    if not math.isfinite(score):
        raise ValueError(f"the scorer of {dataset!r} returned {score}")
    return min(max(score, 0.0), 1.0)


def extracted(extract: Extract, response: str) -> str | None:
    """Returns the text to be scored, stripped; None if the response holds none of that form."""
    if extract == "answer_tag":
        found = last_tag(response, "answer")
    elif extract == "boxed":
        found = last_boxed(response)
    elif extract == "number":
        found = last_number_text(response)
    elif extract == "last_line":
        found = response.strip().rpartition("\n")[2]
    elif extract == "whole":
        found = response
    else:
        tag, box = last_tag(response, "answer"), last_boxed(response)
        found = tag if tag is not None else box if box is not None else response
    return None if found is None else found.strip()


@cache
def _scorer(dataset: str) -> Any:
    import reasoning_gym

    # Scorers read their entry, not their settings; a small instance is enough.
    return reasoning_gym.create_dataset(dataset, seed=0, size=1)
