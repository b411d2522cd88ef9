"""Curves of a run: metrics over steps, tokens and seconds, read from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from titanrl.errors import TrainingError, did_you_mean
from titanrl.report.metrics import read_metrics

__all__ = ["BUDGETS", "Budget", "Curves", "check_metric", "read_curves"]

Budget = Literal["steps", "tokens", "seconds"]
BUDGETS: tuple[Budget, ...] = ("steps", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Curves:
    """Metrics of one run over its cumulative cost."""

    cost: Mapping[Budget, Sequence[float]]
    """Cumulative steps, tokens and seconds at each line of metrics.jsonl."""
    values: Mapping[str, Sequence[float | None]]
    """Metric -> its value at each line; None if the line has none."""
    known: frozenset[str]
    """Names of all metrics that the run recorded."""

    def total(self, budget: Budget) -> float:
        """Return the total cost of the run."""
        return self.cost[budget][-1]

    def points(self, metric: str, budget: Budget = "steps") -> list[tuple[float, float]]:
        """Return (cost, value) of each line that has the metric."""
        pairs = zip(self.cost[budget], self.values[metric], strict=True)
        return [(cost, value) for cost, value in pairs if value is not None]

    def at(self, metric: str, budget: Budget, limit: float, window: int = 1) -> float | None:
        """Return the value of a metric within a budget; None if it has none.

        The value is the mean over the ``window`` steps up to the last recorded step within the budget.

        Args:
            metric: name of the metric.
            budget: kind of the budget.
            limit: size of the budget.
            window: number of steps, >= 1.
        """
        lines = zip(self.cost["steps"], self.cost[budget], self.values[metric], strict=True)
        points = [(step, value) for step, cost, value in lines if value is not None and cost <= limit]
        return fmean(value for step, value in points if step > points[-1][0] - window) if points else None


def read_curves(folder: Path, metrics: Sequence[str]) -> Curves:
    """Read the curves of a finished run.

    Args:
        folder: folder of the run.
        metrics: names of the metrics; one that the run lacks is None at every line.
    """
    lines = list(read_metrics(folder / "metrics.jsonl"))
    cost: dict[Budget, list[float]] = {budget: [] for budget in BUDGETS}
    tokens = seconds = 0.0
    for line in lines:
        tokens += _tokens(line)
        seconds += _seconds(line)
        for budget, value in zip(BUDGETS, (line["step"], tokens, seconds), strict=True):
            cost[budget].append(value)
    values = {name: [line.get(name) for line in lines] for name in metrics}
    return Curves(cost, values, frozenset(name for line in lines for name in line))


def check_metric(folder: Path, metric: str) -> None:
    """Check that a finished run recorded the deciding metric, before further runs are executed.

    Args:
        folder: folder of the run.
        metric: name of the metric.

    Raises:
        TrainingError: the run lacks the metric; the message names the closest match.
    """
    curves = read_curves(folder, [metric])
    if not curves.points(metric):
        hint = (
            did_you_mean(metric, curves.known - {"step"}) or "; its metrics.jsonl lists the available ones."
        )
        raise TrainingError(
            f"metric must be one that every variant records, got {metric!r}, which {str(folder)!r} "
            f"lacks{hint}"
        )


def _tokens(line: Mapping[str, Any]) -> float:
    """Return the tokens of a step: sampled ones, over all attempts, or the loss tokens of offline data."""
    sampled = line.get("sample/tokens")
    return float((line.get("data/loss_tokens") if sampled is None else sampled) or 0.0)


def _seconds(line: Mapping[str, Any]) -> float:
    """Return the seconds of a step without validation and checkpoints."""
    total = float(line.get("time/step_seconds") or 0.0)
    return total - sum(float(line.get(f"time/{part}_seconds") or 0.0) for part in ("validate", "checkpoint"))
