"""Summary of a recipe's stages: a table, a figure and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.report.folder import write_atomic
from titanrl.report.metrics import read_metrics

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["StageResult", "describe_data", "describe_run", "summarize"]


class StageResult(NamedTuple):
    """Result of one finished stage."""

    name: str
    kind: str
    """train, rft, or start for the initial model."""
    scores: dict[str, Any] | None
    """Held-out scores as ``EvalResult.to_json`` returns them; None: no language model, or no evaluation."""
    remark: str
    """Outcome of the stage in words."""
    seconds: float
    """Duration of the call that finished the stage."""


def describe_run(metrics: Path) -> str:
    """Return the first and the last values of a run's main metrics as text."""
    lines = list(read_metrics(metrics))
    parts = []
    for key, title in (
        ("eval/accuracy", "held-out accuracy"),
        ("eval/loss", "held-out loss"),
        ("reward/mean", "training reward"),
        ("loss/total", "training loss"),
    ):
        values = [line[key] for line in lines if line.get(key) is not None]
        # The policy-gradient loss is about 0 by construction.
        if values and not (key == "loss/total" and "reward/mean" in lines[-1]):
            parts.append(f"{title} {values[0]:.3f} to {values[-1]:.3f}")
    return "; ".join(parts)


def describe_data(statistics: Path) -> str:
    """Return the statistics.json of rejection sampling as text."""
    counts = json.loads(statistics.read_text("utf-8"))
    return (
        f"{counts['rows']} rows from {counts['answers']} responses to {counts['prompts']} prompts; "
        f"mean reward {counts['reward_mean']:.3f}"
    )


def summarize(results: Sequence[StageResult], folder: Path) -> None:
    """Print the table; write summary.json and, if there are held-out scores, summary.png."""
    from rich.console import Console

    write_atomic(folder / "summary.json", json.dumps([each._asdict() for each in results], indent=2) + "\n")
    Console().print(_table(results))
    if any(each.scores is not None for each in results):
        _plot(results, folder / "summary.png")


def _table(results: Sequence[StageResult]) -> Table:
    from rich.table import Table

    table = Table("stage", "held-out score", "95% interval", "outcome", "minutes")
    for result in results:
        score = None if result.scores is None else result.scores["score"]
        table.add_row(
            result.name,
            "" if score is None else f"{score['mean']:.3f}",
            "" if score is None else f"{_number(score['low'])} to {_number(score['high'])}",
            result.remark,
            f"{result.seconds / 60:.1f}",
        )
    return table


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def _plot(results: Sequence[StageResult], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(1.6 * len(results), 4.0), 3.6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    positions: list[int] = []
    means: list[float] = []
    below: list[float] = []
    above: list[float] = []
    for position, result in enumerate(results):
        if result.scores is not None:
            score: Mapping[str, float | None] = result.scores["score"]
            mean = score["mean"]
            assert mean is not None
            positions.append(position)
            means.append(mean)
            for errors, key in ((below, "low"), (above, "high")):
                bound = score[key]
                errors.append(0.0 if bound is None else abs(bound - mean))
    axis.errorbar(positions, means, yerr=[below, above], marker="o", markersize=6, capsize=4, linewidth=1.6)
    axis.set_xticks(range(len(results)), [each.name for each in results])
    axis.set_xlim(-0.5, len(results) - 0.5)
    axis.set_title("held-out score after each stage, 95% interval", fontsize=10, loc="left")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
