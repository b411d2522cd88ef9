"""Tables of an ablation file except its variants; each key's docstring is its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from titanrl.config.renames import renamed_metric
from titanrl.registry import Range, validated

__all__ = ["METRIC_STAGES", "Budgets", "Expectation", "Settings"]

METRIC_STAGES = (
    "sample",
    "data",
    "reward",
    "advantage",
    "filter",
    "correction",
    "loss",
    "kl",
    "critic",
    "update",
    "eval",
    "time",
)
"""Stages that metrics are named after: ``stage/quantity``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Budgets at which variants are compared: equal steps, tokens or time."""

    steps: tuple[int, ...] = ()
    """Training steps. Default, as for the other budgets: the maximum that every finished run reached."""
    tokens: tuple[int, ...] = ()
    """Cumulative tokens: sampled tokens online, loss tokens offline."""
    seconds: tuple[float, ...] = ()
    """Cumulative seconds of training, without validation and checkpoints."""

    def __post_init__(self) -> None:
        for kind in ("steps", "tokens", "seconds"):
            values = getattr(self, kind)
            if any(value <= 0 for value in values) or list(values) != sorted(set(values)):
                raise ValueError(f"{kind} must be above 0 and increasing, got {list(values)}.")


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """An expectation derived from a publication, stated before the runs."""

    variant: str
    """Name of the variant that is compared with the baseline."""
    direction: Literal["higher", "lower", "same"]
    """Expected direction of the metric relative to the baseline; same: within the margin."""
    metric: str | None = None
    """Name of the metric. Default: the metric of the ablation."""
    margin: Annotated[float, Range("[0, inf)")] = 0.0
    """Largest difference that still counts as none, in units of the metric, >= 0; requires direction same."""

    def __post_init__(self) -> None:
        if (self.direction == "same") != (self.margin > 0):
            raise ValueError(
                f"margin must be above 0 with direction 'same' and absent otherwise, got {self.margin} with "
                f"{self.direction!r}; no two results are equal to the last digit."
            )


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Variants of an ablation and how they are compared."""

    base: str
    """Experiment file that the variants change, relative to this file."""
    title: str = ""
    """The question in one line. Default: the file's name."""
    claim: str = ""
    """The expectation and its reason, in a few sentences."""
    source: str = ""
    """Publication of the claim."""
    remark: str = ""
    """Conclusion, written after the runs."""
    seeds: Annotated[int, Range("[2, inf)")] = 5
    """Number of runs per variant, with [run] seed 0, 1, ...; >= 2."""
    baseline: str | None = None
    """Name of the variant that the others are compared with. Default: the first."""
    metric: str = "eval/score"
    """Metric that decides the comparison; every variant must record it."""
    metrics: tuple[str, ...] = ()
    """Further metrics of the report."""
    window: Annotated[int, Range("[1, inf)")] = 1
    """Steps at the end of a budget over which a metric is averaged, >= 1; larger for noisy metrics."""
    budgets: Budgets = field(default_factory=Budgets)
    """Budgets at which variants are compared."""
    expect: tuple[Expectation, ...] = ()
    """Expectations of the variants."""

    def __post_init__(self) -> None:
        for name in self.all_metrics:
            if new := renamed_metric(name):
                raise ValueError(f"metric {name!r} was renamed to {new!r}.")
            stage, _, quantity = name.partition("/")
            if stage not in METRIC_STAGES or not quantity:
                stages = ", ".join(METRIC_STAGES)
                raise ValueError(
                    f"metric must be named stage/quantity with a stage of {stages}, got {name!r}."
                )

    @property
    def all_metrics(self) -> tuple[str, ...]:
        """All metrics without duplicates, the deciding metric first."""
        expected = [each.metric for each in self.expect if each.metric is not None]
        return tuple(dict.fromkeys([self.metric, *self.metrics, *expected]))
