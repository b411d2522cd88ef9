"""Writers of metrics, samples and alerts. Rank 0 only."""

from __future__ import annotations

import time
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
    """A destination of a run's metrics; open from construction until `close`."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the ``stage/quantity`` numbers of one step."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write samples of one step."""

    def alert(self, step: int, alert: Alert) -> None:
        """Write an alert of one step."""

    def close(self) -> None: ...


def open_writers(folder: RunFolder, settings: Report, *, first_step: int = 0) -> list[Writer]:
    """Return the writers that ``settings`` select, the run folder's own files first.

    Args:
        folder: folder of the run.
        settings: the [report] table.
        first_step: first step of this process; earlier output of this step and later is moved aside.

    Raises:
        ConfigError: the Prometheus port is in use.
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
    """Writer of metrics.jsonl, samples.jsonl and alerts.jsonl in a run folder.

    Args:
        folder: folder of the run.
        first_step: lines of this step and later are moved aside, see JsonLines.
    """

    def __init__(self, folder: RunFolder, first_step: int = 0) -> None:
        paths = (folder.metrics, folder.samples, folder.alerts)
        self._metrics, self._samples, self._alerts = files = [JsonLines(path, first_step) for path in paths]
        self.moved = {path.name: each.num_moved for path, each in zip(paths, files, strict=True)}
        """Lines of steps that will be repeated, which were moved aside, by file name."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics.write({"step": step, "time/unix_seconds": round(time.time(), 3), **metrics})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self._samples.write({"step": step, **row})

    def alert(self, step: int, alert: Alert) -> None:
        self._alerts.write({"step": step, **alert._asdict()})

    def close(self) -> None:
        for file in (self._metrics, self._samples, self._alerts):
            file.close()
