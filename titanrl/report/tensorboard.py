"""TensorBoard writer: scalars with a layout, samples as text, settings as hparams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli

from titanrl.report.alerts import Alert
from titanrl.report.panels import SECTIONS
from titanrl.report.record import flattened

__all__ = ["TensorBoard", "layout"]

RESULTS = ("eval/score", "eval/loss", "eval/accuracy", "reward/mean")
"""Metrics by which the hparams view compares runs, if a run has them."""
NUM_SAMPLES = 3
"""Number of samples per step that are written as text."""


class TensorBoard:
    """Writer of event files.

    Args:
        folder: folder of the files.
        text: the resolved experiment file.
        first_step: earlier events of this step and later are dropped.
    """

    def __init__(self, folder: Path, text: str, first_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board: Any = SummaryWriter(str(folder), purge_step=first_step or None)
        self._table, self._last = tomli.loads(text), dict[str, float]()
        if first_step == 0:
            self._board.add_custom_scalars(layout())
            self._board.add_text("experiment", f"```\n{text}\n```", 0)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()
        self._last.update(metrics)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._board.add_text("samples", "\n\n---\n\n".join(map(_markdown, rows[:NUM_SAMPLES])), step)

    def alert(self, step: int, alert: Alert) -> None:
        self._board.add_text(f"alerts/{alert.name}", alert.message, step)

    def close(self) -> None:
        from torch.utils.tensorboard.summary import hparams

        results = {f"result/{name}": self._last[name] for name in RESULTS if name in self._last}
        # add_hparams would create a separate folder, which TensorBoard shows as another run.
        for summary in hparams(flattened(self._table), results):  # type: ignore[no-untyped-call]
            self._board.file_writer.add_summary(summary)
        for name, value in results.items():
            self._board.add_scalar(name, value)
        self._board.close()


def layout() -> dict[str, dict[str, list[Any]]]:
    """Return the layout of custom scalars: the sections and panels of a run's page."""
    charts: dict[str, dict[str, list[Any]]] = {}
    for section, panels in SECTIONS.items():
        charts[section] = {panel.title: ["Multiline", list(panel.keys)] for panel in panels}
    score = ["eval/score", "eval/score_low", "eval/score_high"]
    charts["Results"]["held-out score with 95% interval"] = ["Margin", score]
    charts["Results"]["rewards"] = ["Multiline", ["^reward/(?!.*(failures|std)$).*"]]
    charts["Time"] = {"seconds per step": ["Multiline", ["^time/.*_seconds$"]]}
    return charts


def _markdown(row: Mapping[str, Any]) -> str:
    text = str(row["response"])
    if row.get("transcript"):
        text = "\n".join(f"{each.get('role')}: {each.get('content')}" for each in row["transcript"])
    quoted = "\n".join(f"    {line}" for line in text.splitlines() or [""])
    facts = [f"reward {row['reward']:.3f}"] if "reward" in row else []
    facts += [row["finish_reason"]] if "finish_reason" in row else []
    return f"**{row['prompt']}**\n\n{quoted}\n\n{', '.join(facts)}"
