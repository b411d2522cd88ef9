"""Where a step's numbers, samples and alerts go. Rank 0 only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import tomli

from titanrl.report.alerts import Alert
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import JsonLines

if TYPE_CHECKING:
    from titanrl.config.report_tables import Report

__all__ = ["Files", "Writer", "open_writers"]


class Writer(Protocol):
    """One place to which a run's numbers go; open from its making until `close`."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes ``stage/quantity`` numbers of one step."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes a few answers of one step."""

    def alert(self, step: int, alert: Alert) -> None:
        """Takes an alert that a step raised."""

    def close(self) -> None: ...


def open_writers(folder: RunFolder, settings: Report, *, first_step: int = 0) -> list[Writer]:
    """Returns every writer that ``settings`` name, the run folder's own files first.

    Args:
        first_step: of this process; what an interrupted run wrote from there on is replaced.

    Raises:
        ConfigError: the port is taken.
    """
    writers: list[Writer] = [Files(folder, first_step)]
    text = folder.config.read_text("utf-8")
    if settings.tensorboard:
        from titanrl.report.tensorboard import TensorBoard

        writers.append(TensorBoard(folder.tensorboard, text, first_step))
    for name in settings.trackers:
        from titanrl.report.tracker import Tracker

        writers.append(Tracker(name, folder.path, settings.project, tomli.loads(text)))
    if settings.prometheus_port is not None:
        from titanrl.report.prometheus import Prometheus

        writers.append(Prometheus(settings.prometheus_port, folder.path.name))
    return writers


class Files:
    """metrics.jsonl, samples.jsonl and alerts.jsonl of a run folder."""

    def __init__(self, folder: RunFolder, first_step: int = 0) -> None:
        paths = (folder.metrics, folder.samples, folder.alerts)
        self._metrics, self._samples, self._alerts = (JsonLines(path, first_step) for path in paths)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics.write({"step": step, **metrics})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self._samples.write({"step": step, **row})

    def alert(self, step: int, alert: Alert) -> None:
        self._alerts.write({"step": step, **alert._asdict()})

    def close(self) -> None:
        for file in (self._metrics, self._samples, self._alerts):
            file.close()
