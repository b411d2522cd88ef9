"""The tables of an ablation file other than what varies; each key's docstring is its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from titanrl.config.renames import renamed_metric
from titanrl.registry import Range, validated

__all__ = ["STAGES", "Budgets", "Expectation", "Settings"]

STAGES = (
    "sample", "data", "reward", "advantage", "filter", "correction", "loss", "kl", "critic", "update", "eval",
    "time",
)  # fmt: skip
"""First parts of the names of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Where variants are compared: at equal steps, tokens or time."""

    steps: tuple[int, ...] = ()
    """Training steps; omitted: the most that every finished run reached, as for the others."""
    tokens: tuple[int, ...] = ()
    """Tokens sampled, or trained where answers are fixed, from the beginning."""
    seconds: tuple[float, ...] = ()
    """Seconds of training, without validation and checkpoints."""

    def __post_init__(self) -> None:
        for kind in ("steps", "tokens", "seconds"):
            values = getattr(self, kind)
            if any(value <= 0 for value in values) or list(values) != sorted(set(values)):
                raise ValueError(f"{kind} must be above 0 and increasing, got {list(values)}.")


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a paper makes us expect, written down before the runs."""

    variant: str
    """Name of the variant that is compared with the baseline."""
    direction: Literal["higher", "lower", "same"]
    """Which way its metric lies from the baseline's; same: within the margin."""
    metric: str | None = None
    """Name of the metric; omitted: that of the ablation."""
    margin: Annotated[float, Range("[0, inf)")] = 0.0
    """Difference that still counts as none, in units of the metric, >= 0; goes with direction same."""

    def __post_init__(self) -> None:
        if (self.direction == "same") != (self.margin > 0):
            raise ValueError(
                f"margin must be above 0 with direction 'same' and absent otherwise, got {self.margin} with "
                f"{self.direction!r}; no two results are the same to the last digit."
            )


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an ablation compares, and how."""

    base: str
    """Experiment file that the variants change, relative to this file."""
    title: str = ""
    """The question in a line; omitted: the file's name."""
    claim: str = ""
    """What is expected and why, in a few sentences."""
    source: str = ""
    """Where that was published."""
    remark: str = ""
    """What the runs taught, written after them."""
    seeds: Annotated[int, Range("[2, inf)")] = 5
    """Runs of each variant, with [run] seed 0, 1, ...; >= 2."""
    baseline: str | None = None
    """Name of the variant that the others are compared with; omitted: the first."""
    metric: str = "eval/score"
    """What decides: a metric of metrics.jsonl that every variant has."""
    metrics: tuple[str, ...] = ()
    """Further metrics that the report shows."""
    window: Annotated[int, Range("[1, inf)")] = 1
    """Steps at the end of a budget over which a metric is averaged, >= 1: more for noisy training metrics."""
    budgets: Budgets = field(default_factory=Budgets)
    """Where variants are compared."""
    expect: tuple[Expectation, ...] = ()
    """What is expected of variants."""

    def __post_init__(self) -> None:
        for name in self.shown:
            if new := renamed_metric(name):
                raise ValueError(f"metric {name!r} was renamed to {new!r}.")
            if name.partition("/")[0] not in STAGES or not name.partition("/")[2]:
                raise ValueError(
                    f"metric must be named stage/quantity with a stage of {', '.join(STAGES)}, got {name!r}."
                )

    @property
    def shown(self) -> tuple[str, ...]:
        """All metrics, the deciding one first, each once."""
        expected = [each.metric for each in self.expect if each.metric is not None]
        return tuple(dict.fromkeys([self.metric, *self.metrics, *expected]))
