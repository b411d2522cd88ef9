"""Recorder of a run: its files, trackers and live view. Only rank 0 records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.markup import escape

from titanrl.report.alerts import Alert, AlertMonitor
from titanrl.report.curves import plot
from titanrl.report.folder import RunFolder
from titanrl.report.metrics import read_metrics
from titanrl.report.progress import StepView
from titanrl.report.writers import Files, Writer, open_writers

if TYPE_CHECKING:
    from titanrl.config.report_tables import Report

__all__ = ["Recorder"]


class Recorder:
    """A context manager that records metrics, samples and alerts to files, trackers and the terminal.

    Step k is the state after k training steps; step 0 holds the validation before training.

    Args:
        folder: folder of the run.
        settings: the [report] table.
        steps: number of steps of the whole run.
        done: number of steps finished before this process started.
        enabled: whether this rank records.
        monitor: raises alerts; None: no alerts.
        constant: metrics that the console leaves out while they are 0, because they are so by construction.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Report,
        *,
        steps: int,
        done: int,
        enabled: bool,
        monitor: AlertMonitor | None = None,
        constant: Collection[str] = (),
    ) -> None:
        self.folder = folder
        # A resumed run rewrites the steps after its checkpoint; step 0 is never written twice.
        self._first = done + 1 if done else 0
        self._settings = settings
        self._enabled, self._monitor = enabled, monitor
        self._view = StepView(
            steps,
            start=done,
            enabled=enabled,
            live=settings.progress,
            log=folder.log,
            constant=constant,
        )
        self._writers: list[Writer] = []
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        if self._enabled:
            self._writers = open_writers(self.folder, self._settings, first_step=self._first)
            self._report_moved()
            if self._monitor is not None:  # Replays the steps before an interruption.
                for line in read_metrics(self.folder.metrics):
                    self._monitor.update(int(line["step"]), line)
        self._view.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)
        for writer in self._writers:
            writer.close()

    def _report_moved(self) -> None:
        """Report the lines of steps that will be repeated."""
        moved = [item for each in self._writers if isinstance(each, Files) for item in each.moved.items()]
        if listed := ", ".join(f"{count} of {name}" for name, count in moved if count):
            self._view.message(
                f"lines of steps after {self._first - 1}, and incomplete lines, were moved to "
                f"{self.folder.path / 'superseded'}: {listed}"
            )

    def validation(self, metrics: Mapping[str, float]) -> None:
        """Record the validation before the first step."""
        if self._enabled and metrics:
            for writer in self._writers:
                writer.scalars(0, metrics)
            self.alerts(0, metrics)
            self._view.message(f"validation before training: {_validation_text(metrics)}")

    def alerts(self, step: int, metrics: Mapping[str, float]) -> list[Alert]:
        """Record the alerts of a step and return them; empty if this rank does not record.

        Args:
            step: number of finished steps.
            metrics: all metrics of the step, including validation.
        """
        if not self._enabled or self._monitor is None:
            return []
        raised = self._monitor.update(step, metrics)
        for alert in raised:
            for writer in self._writers:
                writer.alert(step, alert)
            self._view.message(f"[bold yellow]alert {alert.name}[/] in step {step}: {escape(alert.message)}")
        return raised

    def failures(self, reasons: Mapping[str, str]) -> None:
        """Report the first failure of each reward, once.

        Args:
            reasons: label of a reward -> reason of its first failure.
        """
        for label in sorted(reasons.keys() - self._reported):
            self._reported.add(label)
            effect = "failed responses get its failure_score or are unscored (reported once)"
            text = f"failed: {reasons[label]}; {effect}"
            self._view.message(f"[bold yellow]reward {escape(label)}[/] {escape(text)}")

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        samples: Sequence[Mapping[str, Any]],
    ) -> None:
        """Record a finished step.

        Args:
            step: number of finished steps, >= 1.
            metrics: ``stage/quantity`` -> number.
            seconds: stage -> seconds.
            samples: rows for samples.jsonl.
        """
        if not self._enabled:
            return
        total = sum(seconds.values())
        times = {f"time/{stage}_seconds": duration for stage, duration in seconds.items()}
        tokens = metrics.get("sample/tokens", metrics.get("data/loss_tokens", 0.0))
        times |= {"time/step_seconds": total, "time/tokens_per_second": tokens / total}
        for writer in self._writers:
            writer.scalars(step, {**metrics, **times})
            writer.samples(step, samples)
        self._view.step(metrics, seconds)

    def finish(self) -> None:
        """Plot the curves and print the paths of the results."""
        if not self._enabled:
            return
        plot([self.folder.path], self.folder.curves)
        recorded = list(read_metrics(self.folder.metrics))
        validations = [text for line in recorded if (text := _validation_text(line))]
        lines = [f"run folder   {self.folder.path}"]
        if skipped := sum(bool(line.get("update/skipped")) for line in recorded):
            lines.append(f"skipped      updates in {skipped} steps: the gradient was zero or not finite")
        if validations:
            lines.append(f"validation   start {validations[0]}")
            lines.append(f"             end   {validations[-1]}")
        lines.append(f"curves       {self.folder.curves}")
        if size := _file_bytes(self.folder.checkpoints):
            lines.append(f"checkpoints  {self.folder.checkpoints} ({_describe_bytes(size)})")
        if self._settings.tensorboard:
            lines.append(f"TensorBoard  tensorboard --logdir {self.folder.path}")
        self._view.message("\n".join(lines))


def _file_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; a file that is deleted meanwhile counts as 0."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def _describe_bytes(size: int) -> str:
    """Return a number of bytes in decimal units, as disks are sold and `du --si` prints."""
    for unit, number in (("GB", 1e9), ("MB", 1e6)):
        if size >= number:
            return f"{size / number:.1f} {unit} on disk"
    return f"{size / 1e3:.1f} kB on disk"


VALIDATION_METRICS = ("accuracy", "calibration_error", "length_correlation")
"""Metrics that summarize a validation on held-out data, if the run has them."""


def _validation_text(metrics: Mapping[str, float | None]) -> str:
    """Return a validation as text: the score with its interval, or the loss; "" if there is none."""
    if (score := metrics.get("eval/score")) is not None:
        low, high = (metrics[f"eval/score_{end}"] for end in ("low", "high"))
        return (
            f"{score:.3f}  (95% interval {low:.3f} to {high:.3f}, {metrics['eval/num_prompts']:.0f} prompts)"
        )
    if (loss := metrics.get("eval/loss")) is not None:
        known = {name: metrics.get(f"eval/{name}") for name in VALIDATION_METRICS}
        further = "".join(f"{name.replace('_', ' ')} {x:.3f}, " for name, x in known.items() if x is not None)
        return f"loss {loss:.4f}  ({further}{metrics['eval/num_examples']:.0f} examples)"
    return ""
