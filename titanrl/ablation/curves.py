"""metrics.jsonl of a run -> the value of a metric at a number of steps, of tokens, of seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from titanrl.errors import TrainingError, did_you_mean
from titanrl.report.jsonl import read_jsonl

__all__ = ["BUDGETS", "Budget", "Curves", "check_metric", "read_curves"]

Budget = Literal["steps", "tokens", "seconds"]
BUDGETS: tuple[Budget, ...] = ("steps", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Curves:
    """Metrics of one run over what was spent."""

    spent: Mapping[Budget, Sequence[float]]
    """Steps, tokens and seconds from the beginning, at each line of metrics.jsonl."""
    values: Mapping[str, Sequence[float | None]]
    """Metric -> its value at each line; None where the line has none."""
    known: frozenset[str]
    """Names of all metrics that the run recorded."""

    def total(self, budget: Budget) -> float:
        """Returns what the whole run spent."""
        return self.spent[budget][-1]

    def points(self, metric: str, budget: Budget = "steps") -> list[tuple[float, float]]:
        """Returns (spent, value) wherever the metric was recorded."""
        pairs = zip(self.spent[budget], self.values[metric], strict=True)
        return [(at, value) for at, value in pairs if value is not None]

    def at(self, metric: str, budget: Budget, limit: float, window: int = 1) -> float | None:
        """Returns the metric when so much was spent: the mean over the ``window`` steps that end with the
        last one until then that recorded it.

        None: it had not been recorded yet, or never is.
        """
        lines = zip(self.spent["steps"], self.spent[budget], self.values[metric], strict=True)
        until = [(step, value) for step, spent, value in lines if value is not None and spent <= limit]
        return fmean(value for step, value in until if step > until[-1][0] - window) if until else None


def read_curves(folder: Path, metrics: Sequence[str]) -> Curves:
    """Returns the curves of a finished run.

    Args:
        folder: of the run. metrics: the names wanted; one that the run lacks is None everywhere.
    """
    lines = list(read_jsonl(folder / "metrics.jsonl"))
    spent: dict[Budget, list[float]] = {budget: [] for budget in BUDGETS}
    tokens = seconds = 0.0
    for line in lines:
        tokens += _tokens(line)
        seconds += _seconds(line)
        for budget, value in zip(BUDGETS, (line["step"], tokens, seconds), strict=True):
            spent[budget].append(value)
    return Curves(
        spent, {name: [line.get(name) for line in lines] for name in metrics},
        frozenset(name for line in lines for name in line),
    )  # fmt: skip


def check_metric(folder: Path, metric: str) -> None:
    """Refuses a finished run without the metric that decides: all would run in vain.

    Raises:
        TrainingError: it is not there; the message names the nearest that is.
    """
    curves = read_curves(folder, [metric])
    if not curves.points(metric):
        near = did_you_mean(metric, curves.known - {"step"}) or "; metrics.jsonl there has those it can be."
        raise TrainingError(
            f"metric must be one that every variant records, got {metric!r}, which {str(folder)!r} "
            f"lacks{near}"
        )


def _tokens(line: Mapping[str, Any]) -> float:
    """Returns the tokens of a step; where filters made it draw anew, each draw counts like the last."""
    sampled = line.get("sample/tokens")
    if sampled is None:
        return float(line.get("data/loss_tokens") or 0.0)
    return float(sampled) * (1 + float(line.get("sample/resample_attempts") or 0.0))


def _seconds(line: Mapping[str, Any]) -> float:
    total = float(line.get("time/step_seconds") or 0.0)
    return total - sum(float(line.get(f"time/{part}_seconds") or 0.0) for part in ("validate", "checkpoint"))
