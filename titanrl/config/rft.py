"""The [rft] table: what ``titanrl rft`` samples, and which of the answers it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.errors import Problem, did_you_mean
from titanrl.registry import Range, validated

if TYPE_CHECKING:
    from titanrl.config.tables import Reward
    from titanrl.protocols import DataSettings

__all__ = ["RFT", "rft_problems"]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class RFT:
    """Rejection sampling: what ``titanrl rft`` samples to [prompts] and keeps; training doesn't read it."""

    renamed: ClassVar[dict[str, str]] = {
        "write=answers": "responses",
        "keep": "max_per_prompt",
        "least": "min_rewards",
        "unfinished": "include_truncated",
    }

    write: Literal["responses", "pairs"] = "responses"
    """answers: the best ones to each prompt, for supervised training; pairs: the best against the worst, for
    preference losses and reward models."""
    num_prompts: Annotated[int | None, Range("[1, inf)")] = None
    """Prompts asked, the first of the source, >= 1; omitted: all of them."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 8
    """Answers sampled to each prompt (N), >= 1; >= 2 for pairs."""
    prompts_per_batch: Annotated[int, Range("[1, inf)")] = 16
    """Prompts answered side by side, over all ranks, >= 1; only speed and memory depend on it."""
    reward: str | None = None
    """Label of the [[reward]] whose raw value ranks the answers; omitted: the weighted sum of all."""
    max_per_prompt: Annotated[int, Range("[1, inf)")] = 1
    """Answers kept of each prompt, the best first, >= 1; answers only."""
    min_reward: Annotated[float, Range("[-inf, inf)")] = -math.inf
    """Least reward of an answer that is kept, or chosen in a pair."""
    min_rewards: Annotated[dict[str, float], Range("[-inf, inf)")] = field(default_factory=dict)
    """Label of a [[reward]] -> least raw value of an answer that is kept or chosen: its form, its language.
    A reward of weight 0 is such a condition and nothing else."""
    min_margin: Annotated[float, Range("[0, inf)")] = 0.0
    """Least difference in reward between the two of a pair, >= 0; equal ones are never a pair."""
    min_tokens: Annotated[int, Range("[1, inf)")] = 1
    """Shortest answer that is used at all, tokens with the end token, >= 1."""
    max_tokens: Annotated[int | None, Range("[min_tokens, inf)")] = None
    """Longest answer that is used at all, tokens with the end token, >= 1."""
    include_truncated: bool = False
    """Whether answers cut at [sampler] max_response_tokens are used; a model trained on them learns to end
    there."""
    dedup: bool = True
    """Whether the same text to the same prompt is written only once, in the whole file."""

    def __post_init__(self) -> None:
        if self.write == "pairs" and self.samples_per_prompt < 2:
            raise ValueError(f"samples_per_prompt must be >= 2 for pairs, got {self.samples_per_prompt}.")
        unused = {
            "pairs": ("max_per_prompt", self.max_per_prompt != 1),
            "responses": ("min_margin", self.min_margin != 0),
        }
        key, is_given = unused[self.write]
        if is_given:
            raise ValueError(f"{key} is not used with write = {self.write!r}; leave it out.")


def rft_problems(rft: RFT | None, data: DataSettings | None, reward: tuple[Reward, ...]) -> list[Problem]:
    """Returns what is wrong between [rft] and other tables."""
    if rft is None:
        return []
    if data is not None:
        return [Problem("rft", "must be absent with [data]; it samples answers to [prompts].")]
    if not reward:
        return [Problem("rft", "needs a [[reward]] that judges the answers; add one.")]
    labels = [each.label for each in reward]
    named = [("reward", rft.reward)] if rft.reward is not None else []
    return [
        Problem(
            "rft",
            f"must name the label of a [[reward]], got {label!r}"
            f"{did_you_mean(label, labels) or ';'} labels: {', '.join(labels)}.",
            key,
        )
        for key, label in [*named, *(("min_rewards", label) for label in rft.min_rewards)]
        if label not in labels
    ]
