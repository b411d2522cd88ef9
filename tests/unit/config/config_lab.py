"""Components of a user's own, for the tests of experiment files: one of each kind, nothing behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from titanrl import register


@register("sampler", "lab_sampler")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabSampler:
    """Samples nothing."""

    temperature: float = 1.0
    """Divides the logits, > 0."""
    max_response_tokens: int = 16
    top_k: int = 0
    stop: tuple[str, ...] = ()


@register("source", "lab_source")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabSource:
    dataset: str
    """Which one."""


@register("advantage", "lab_advantage")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabAdvantage:
    source: Literal["reward", "token_reward"] = "reward"

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (self.source,)


@register("advantage", "lab_single")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabSingle:
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    is_group_relative: ClassVar[bool] = False


@register("loss", "lab_loss")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabLoss:
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    reads: tuple[str, ...] = ("old_logprob", "advantage")

    def __post_init__(self) -> None:
        if not 0 < self.clip_low < 1:
            raise ValueError(f"clip_low must be in (0, 1), got {self.clip_low}.")

    @property
    def in_keys(self) -> tuple[str, ...]:
        return self.reads


@register("loss", "lab_other_loss")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabOtherLoss:
    tau: float = 1.0
    in_keys: ClassVar[tuple[str, ...]] = ("advantage",)


@register("loss", "lab_critic")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabCritic:
    in_keys: ClassVar[tuple[str, ...]] = ("advantage",)
    needs: ClassVar[tuple[str, ...]] = ("value",)


@register("kl", "lab_kl")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabKL:
    gradient: Literal["pathwise", "straight_through_k2"] = "pathwise"
    output_clamp: float = 10.0


@register("aggregation", "lab_mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabMean:
    """Weighs."""


@register("correction", "lab_correction")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabCorrection:
    cap: float = 2.0
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")


@register("filter", "lab_filter")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabFilter:
    key: str = "reward"

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        return ("reward",) if self.key == "reward" else (("rewards", self.key),)


@register("kl_controller", "lab_adaptive")
@dataclass(slots=True, kw_only=True)
class LabAdaptive:
    coefficient: float = 0.01
    target: float = 0.1


@register("kl_controller", "lab_entropy")
@dataclass(slots=True, kw_only=True)
class LabEntropy:
    coefficient: float = 0.0
    target: float = 0.2
    controls: ClassVar[str] = "entropy"


@register("reward", "lab_match")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabMatch:
    extract: Literal["boxed", "number"] = "boxed"
    failure_score: float = -1.0


@register("reward", "lab_length")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabLength:
    correct: str = ""

    @property
    def in_keys(self) -> tuple[tuple[str, ...], ...]:
        return (("rewards", self.correct),) if self.correct else ()
