"""Score of a reasoning-gym task's own verifier on the answer extracted from the response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from titanrl.components.rewards.text import last_boxed, last_number_text, last_tag, texts
from titanrl.components.sources.reasoning_gym_tasks import check_task, decode_entry
from titanrl.registry import Range, register
from titanrl.runtime.worker_pool import map_with_timeout, max_map_seconds

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["ReasoningGym", "extract_answer", "grade"]

Extract = Literal["auto", "answer_tag", "boxed", "number", "last_line", "whole"]


@register("reward", "reasoning_gym")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    r"""Score of the reasoning-gym task's own verifier, clipped to [0, 1]; 0 if no answer can be extracted.

    `extract` selects the part of the response to score. `auto` takes the last `<answer>...</answer>`, else
    the last balanced ``\boxed{...}``, else the entire response; the other choices accept only one form.
    `number`, the last number of the response, suits arithmetic tasks and models that are too weak for tags,
    because many verifiers give partial credit to a text that merely contains the correct answer.

    The batch key ("text", "answer") holds the task's entry as the source `reasoning_gym` writes it, or a
    plain reference answer.

    Source: reasoning-gym, arXiv 2505.24760.
    """

    dataset: str
    """Name of the task, such as `chain_sum`."""
    extract: Extract = "auto"
    """Part of the response to score."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 5.0
    """Time limit per response, seconds; a response that exceeds it scores `failure_score`."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose scoring failed or timed out."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __post_init__(self) -> None:
        check_task(self.dataset)

    def answer_of(self, response: str) -> str | None:
        """Returns the text to score, None if the response has none; equal texts count together in majority
        voting.
        """
        return extract_answer(self.extract, response)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: the score in [0, 1], or failure_score."""
        from titanrl.ops.scores import fill_missing_scores

        return fill_missing_scores(self.scores(batch), self.failure_score)

    def max_seconds(self, num_rows: int) -> float:
        """Returns the longest time that scoring ``num_rows`` responses may take, seconds."""
        return max_map_seconds(num_rows, self.timeout_seconds)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why scoring failed or timed out."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        items = [(self.dataset, self.extract, *pair) for pair in pairs]
        outcomes = map_with_timeout(
            grade, items, timeout_seconds=self.timeout_seconds, imports=("reasoning_gym",)
        )
        return [outcome.score for outcome in outcomes]


def grade(dataset: str, extract: Extract, response: str, reference: str) -> float:
    """Returns the task's score of one response, in [0, 1]; runs in a worker."""
    answer = extract_answer(extract, response)
    if answer is None:
        return 0.0
    score = float(_scorer(dataset).score_answer(answer, decode_entry(reference)))
    if not math.isfinite(score):
        raise ValueError(f"the scorer of {dataset!r} returned {score}")
    return min(max(score, 0.0), 1.0)


def extract_answer(extract: Extract, response: str) -> str | None:
    """Returns the text to score, stripped; None if the response has none of that form."""
    if extract == "answer_tag":
        text = last_tag(response, "answer")
    elif extract == "boxed":
        text = last_boxed(response)
    elif extract == "number":
        text = last_number_text(response)
    elif extract == "last_line":
        text = response.strip().rpartition("\n")[2]
    elif extract == "whole":
        text = response
    else:
        tag, box = last_tag(response, "answer"), last_boxed(response)
        text = tag if tag is not None else box if box is not None else response
    return None if text is None else text.strip()


@cache
def _scorer(dataset: str) -> Any:
    import reasoning_gym

    # A scorer depends on the entry only, not on the settings, so one entry is enough.
    return reasoning_gym.create_dataset(dataset, seed=0, size=1)
