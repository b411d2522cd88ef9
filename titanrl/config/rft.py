"""The [rft] table: prompts and selection of responses for ``titanrl rft``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.errors import Problem, did_you_mean
from titanrl.registry import Range, validated

if TYPE_CHECKING:
    from titanrl.config.environment import EnvironmentTable
    from titanrl.config.tables import Reward
    from titanrl.protocols import DataSettings

__all__ = ["RFT", "rft_problems"]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class RFT:
    """Rejection sampling: responses that ``titanrl rft`` samples and keeps; training ignores this table."""

    renamed: ClassVar[dict[str, str]] = {
        "write=answers": "responses",
        "keep": "max_per_prompt",
        "least": "min_rewards",
        "unfinished": "include_truncated",
    }

    write: Literal["responses", "pairs"] = "responses"
    """responses: the best responses per prompt, for supervised training; pairs: the best against the
    worst, for preference losses and reward models."""
    num_prompts: Annotated[int | None, Range("[1, inf)")] = None
    """Number of prompts, the first of the source. Default: all."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 8
    """Responses per prompt (N); at least 2 for pairs."""
    prompts_per_batch: Annotated[int, Range("[1, inf)")] = 16
    """Prompts per sampling batch, over all ranks; it affects speed and memory only."""
    reward: str | None = None
    """Label of the [[reward]] whose unweighted value ranks the responses. Default: the weighted sum of
    all."""
    max_per_prompt: Annotated[int, Range("[1, inf)")] = 1
    """Maximum number of responses to keep per prompt, the best first. Only with write = "responses"."""
    min_reward: Annotated[float, Range("[-inf, inf)")] = -math.inf
    """Minimum reward of a kept response, or of the chosen one of a pair."""
    min_rewards: Annotated[dict[str, float], Range("[-inf, inf)")] = field(default_factory=dict)
    """Label of a [[reward]] -> minimum unweighted value of a kept or chosen response, for format or
    language. A reward of weight 0 serves as such a condition only."""
    min_margin: Annotated[float, Range("[0, inf)")] = 0.0
    """Minimum difference in reward within a pair; responses with equal rewards never form a pair."""
    min_tokens: Annotated[int, Range("[1, inf)")] = 1
    """Minimum length of a response, tokens with the end token."""
    max_tokens: Annotated[int | None, Range("[min_tokens, inf)")] = None
    """Maximum length of a response, tokens with the end token."""
    include_truncated: bool = False
    """Whether responses cut at [sampler] max_response_tokens are used; a model trained on them learns to
    stop there."""
    dedup: bool = True
    """Whether equal responses to equal prompts are written only once per file."""

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


def rft_problems(
    rft: RFT | None,
    data: DataSettings | None,
    reward: tuple[Reward, ...],
    environment: EnvironmentTable | None,
) -> list[Problem]:
    """Returns what is wrong between [rft] and other tables."""
    if rft is None:
        return []
    if environment is not None:
        text = "must be absent with [environment], whose rollouts are no single responses; remove it."
        return [Problem("rft", text)]
    if data is not None:
        return [Problem("rft", "must be absent with [data]; it samples responses for [prompts].")]
    if not reward:
        return [Problem("rft", "needs a [[reward]] that scores the responses; add one.")]
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
