"""What the stages of a pipeline came to: one line each, as a table, a picture and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.report.folder import write_atomic
from titanrl.report.jsonl import read_jsonl

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["StageResult", "remark_of_data", "remark_of_run", "summarize", "table_of"]


class StageResult(NamedTuple):
    """What one finished stage came to."""

    name: str
    kind: str
    """train, rft, or start for the model before all stages."""
    scores: dict[str, Any] | None
    """Held-out scores, as ``Verdict.to_json`` gives them; None: not a language model, or not asked for."""
    remark: str
    seconds: float
    """Of the call that finished it."""


def remark_of_run(metrics: Path) -> str:
    """Returns in words what a run's metrics.jsonl says of its beginning and its end."""
    lines = list(read_jsonl(metrics))
    parts = []
    for key, title in (
        ("eval/accuracy", "held-out accuracy"),
        ("eval/loss", "held-out loss"),
        ("reward/mean", "training reward"),
        ("loss/total", "training loss"),
    ):
        values = [line[key] for line in lines if line.get(key) is not None]
        # Where answers are sampled, the loss itself is about 0 by construction.
        if values and not (key == "loss/total" and "reward/mean" in lines[-1]):
            parts.append(f"{title} {values[0]:.3f} to {values[-1]:.3f}")
    return "; ".join(parts)


def remark_of_data(statistics: Path) -> str:
    """Returns in words what a statistics.json of rejection sampling says."""
    found = json.loads(statistics.read_text("utf-8"))
    kept = f"{found['rows']} rows of {found['answers']} answers to {found['prompts']} prompts"
    return f"{kept}; mean reward {found['reward_mean']:.3f}"


def table_of(results: Sequence[StageResult]) -> Table:
    """Returns the stages, a row each."""
    from rich.table import Table

    table = Table("stage", "held-out score", "95% interval", "what it did", "minutes")
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


def summarize(results: Sequence[StageResult], folder: Path) -> None:
    """Prints the table and writes summary.json and, with held-out scores, summary.png."""
    from rich.console import Console

    write_atomic(folder / "summary.json", json.dumps([each._asdict() for each in results], indent=2) + "\n")
    Console().print(table_of(results))
    if any(each.scores is not None for each in results):
        _draw(results, folder / "summary.png")


def _draw(results: Sequence[StageResult], to: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(1.6 * len(results), 4.0), 3.6), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    places: list[int] = []
    means: list[float] = []
    below: list[float] = []
    above: list[float] = []
    for place, result in enumerate(results):
        if result.scores is not None:
            score: Mapping[str, float | None] = result.scores["score"]
            mean = score["mean"]
            assert mean is not None
            places.append(place)
            means.append(mean)
            for side, end in ((below, "low"), (above, "high")):
                bound = score[end]
                side.append(0.0 if bound is None else abs(bound - mean))
    axis.errorbar(places, means, yerr=[below, above], marker="o", markersize=6, capsize=4, linewidth=1.6)
    axis.set_xticks(range(len(results)), [each.name for each in results])
    axis.set_xlim(-0.5, len(results) - 0.5)
    axis.set_title("held-out score after each stage, 95% interval", fontsize=10, loc="left")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(to)
