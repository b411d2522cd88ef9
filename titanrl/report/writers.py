"""Where a step's numbers, samples and alerts go: TensorBoard and JSON lines. Rank 0 only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from titanrl.report.alerts import Alert
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import JsonLines

__all__ = ["Writers"]


class Writers:
    """Open files of one run.

    Args:
        folder: the run. first_step: of this process; what an interrupted run wrote from there on is replaced.
        tensorboard: whether event files are written.
    """

    def __init__(self, folder: RunFolder, *, first_step: int = 0, tensorboard: bool = True) -> None:
        self._metrics = JsonLines(folder.metrics, first_step)
        self._samples = JsonLines(folder.samples, first_step)
        self._alerts = JsonLines(folder.alerts, first_step)
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder.tensorboard), purge_step=first_step or None)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes ``stage/quantity`` numbers of one step."""
        self._metrics.write({"step": step, **metrics})
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes a few answers of one step, and the first of them as TensorBoard text."""
        for row in rows:
            self._samples.write({"step": step, **row})
        if self._board is not None and rows:
            self._board.add_text("samples", "\n\n---\n\n".join(_markdown(row) for row in rows[:3]), step)

    def alert(self, step: int, alert: Alert) -> None:
        """Writes an alert that a step raised."""
        self._alerts.write({"step": step, **alert._asdict()})
        if self._board is not None:
            self._board.add_text(f"alerts/{alert.name}", alert.message, step)
            self._board.flush()

    def text(self, name: str, text: str) -> None:
        """Writes a text, such as the resolved experiment file, to TensorBoard."""
        if self._board is not None:
            self._board.add_text(name, f"```\n{text}\n```", 0)

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
        self._alerts.close()
        if self._board is not None:
            self._board.close()


def _markdown(row: Mapping[str, Any]) -> str:
    quoted = "\n".join(f"    {line}" for line in str(row["response"]).splitlines() or [""])
    known = [f"reward {row['reward']:.3f}"] if "reward" in row else []
    known += [row["finish_reason"]] if "finish_reason" in row else []
    return f"**{row['prompt']}**\n\n{quoted}\n\n{', '.join(known)}"
