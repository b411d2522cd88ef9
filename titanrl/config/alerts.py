"""The [alerts] table: limits beyond which a run reports an alert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from titanrl.registry import Range, validated

__all__ = ["Alerts"]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Limits on metrics averaged over the last ``window`` steps, and numbers of consecutive steps; each alert
    is named after its key."""

    renamed: ClassVar[dict[str, str]] = {
        "logprob_gap": "logprob_diff",
        "stop=logprob_gap": "logprob_diff",
        "equal_groups": "zero_std_groups",
        "stop=equal_groups": "zero_std_groups",
    }

    window: Annotated[int, Range("[1, inf)")] = 5
    """Number of last steps over which a metric is averaged; such alerts are not raised before that many
    steps."""
    skipped_steps: Annotated[int, Range("[0, inf)")] = 5
    """No learning: this many consecutive steps were skipped entirely because the gradient was not finite.
    This alert always stops the run, without a checkpoint; 0: off."""
    zero_gradient: Annotated[int, Range("[0, inf)")] = 5
    """No learning: this many consecutive steps were skipped because the gradient was exactly zero; 0: off."""
    nonfinite_loss: Annotated[int, Range("[0, inf)")] = 1
    """The loss, or the held-out loss, was not finite in this many consecutive steps that measured it; 0:
    off."""
    failed_rewards: Annotated[float, Range("(0, inf]")] = 0.5
    """Broken reward: ``reward/failed_fraction`` above this fraction of rows; inf: off."""
    kl: Annotated[float, Range("(0, inf]")] = 5.0
    """KL blow-up: ``kl/value`` above this, nats; inf: off."""
    entropy: Annotated[float, Range("[0, inf)")] = 0.02
    """Entropy collapse: ``loss/entropy`` below this, nats; 0: off."""
    length_growth: Annotated[float, Range("(1, inf]")] = 2.0
    """Length explosion: factor by which ``sample/response_tokens_mean`` grows from one window to the next;
    inf: off."""
    zero_std_groups: Annotated[float, Range("(0, inf]")] = 0.9
    """No signal: ``advantage/frac_zero_std`` above this fraction of groups; inf: off. Only where
    advantages compare the responses of a group."""
    clip_fraction: Annotated[float, Range("(0, inf]")] = 0.5
    """Updates too large: ``loss/clip_fraction`` above this fraction of tokens; inf: off."""
    logprob_diff: Annotated[float, Range("(0, inf]")] = 0.1
    """Sampler and trainer disagree: ``sample/logprob_diff`` above this, nats; inf: off."""
    reward_hacking: Annotated[float, Range("(0, inf]")] = 0.5
    """Reward rises, score does not: ``reward/mean`` has risen by more than this many ``reward/std`` since
    the best ``eval/score``, which no later evaluation has exceeded; inf: off."""
    stop: tuple[
        Literal[
            "zero_gradient",
            "nonfinite_loss",
            "failed_rewards",
            "kl",
            "entropy",
            "length_growth",
            "zero_std_groups",
            "clip_fraction",
            "logprob_diff",
            "reward_hacking",
        ],
        ...,
    ] = ()
    """Alerts that stop the run, with a checkpoint of the step that raised them."""

    def __post_init__(self) -> None:
        if off := [key for key in self.stop if getattr(self, key) in (math.inf, 0)]:
            raise ValueError(f"stop must name alerts that are on, got {off[0]!r}, which is off.")
