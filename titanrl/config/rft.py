"""The [rft] table: what ``titanrl rft`` samples, and which of the answers it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from titanrl.errors import Problem, check_range, did_you_mean

if TYPE_CHECKING:
    from titanrl.config.tables import Reward
    from titanrl.protocols import DataSettings

__all__ = ["RFT", "rft_problems"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RFT:
    """Rejection sampling: what ``titanrl rft`` samples to [prompts] and keeps; training doesn't read it."""

    write: Literal["answers", "pairs"] = "answers"
    """answers: the best ones to each prompt, for supervised training; pairs: the best against the worst, for
    preference losses and reward models."""
    num_prompts: int | None = None
    """Prompts asked, the first of the source, >= 1; omitted: all of them."""
    samples_per_prompt: int = 8
    """Answers sampled to each prompt (N), >= 1; >= 2 for pairs."""
    prompts_per_batch: int = 16
    """Prompts answered side by side, over all ranks, >= 1; only speed and memory depend on it."""
    reward: str | None = None
    """Label of the [[reward]] whose raw value ranks the answers; omitted: the weighted sum of all."""
    keep: int = 1
    """Answers kept of each prompt, the best first, >= 1; answers only."""
    min_reward: float = -math.inf
    """Least reward of an answer that is kept, or chosen in a pair."""
    least: dict[str, float] = field(default_factory=dict)
    """Label of a [[reward]] -> least raw value of an answer that is kept or chosen: its form, its language.
    A reward of weight 0 is such a condition and nothing else."""
    min_margin: float = 0.0
    """Least difference in reward between the two of a pair, >= 0; equal ones are never a pair."""
    min_tokens: int = 1
    """Shortest answer that is used at all, tokens with the end token, >= 1."""
    max_tokens: int | None = None
    """Longest answer that is used at all, tokens with the end token, >= 1."""
    unfinished: bool = False
    """Whether answers cut at [sampler] max_response_tokens are used; a model trained on them learns to end
    there."""
    dedup: bool = True
    """Whether the same text to the same prompt is written only once, in the whole file."""

    def __post_init__(self) -> None:
        for key in ("num_prompts", "samples_per_prompt", "prompts_per_batch", "keep"):
            check_range(self, key, "[1, inf)")
        check_range(self, "min_reward", "[-inf, inf)")
        check_range(self, "min_margin", "[0, inf)")
        check_range(self, "min_tokens", "[1, inf)")
        check_range(self, "max_tokens", f"[{self.min_tokens}, inf)")
        if self.write == "pairs" and self.samples_per_prompt < 2:
            raise ValueError(f"samples_per_prompt must be >= 2 for pairs, got {self.samples_per_prompt}.")
        other, value = ("keep", self.keep != 1) if self.write == "pairs" else ("min_margin", self.min_margin)
        if value:
            raise ValueError(f"{other} is not used with write = {self.write!r}; leave it out.")


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
        for key, label in [*named, *(("least", label) for label in rft.least)]
        if label not in labels
    ]
