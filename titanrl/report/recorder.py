"""Feeds a run's files and its live view; only the first rank records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.markup import escape

from titanrl.report.alerts import AlertMonitor
from titanrl.report.curves import plot
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import read_jsonl
from titanrl.report.progress import StepView
from titanrl.report.writers import Writer, open_writers

if TYPE_CHECKING:
    from titanrl.config.report_tables import Report

__all__ = ["Recorder"]


class Recorder:
    """One step's numbers and samples -> metrics.jsonl, samples.jsonl, TensorBoard and the terminal.

    Step k is the state after k training steps; step 0 holds the validation before training.

    Args:
        folder: of the run. settings: what is shown and written. steps: of the whole run.
        done: steps finished before this process began. enabled: whether this rank records.
        watch: raises alerts; None: nobody does.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Report,
        *,
        steps: int,
        done: int,
        enabled: bool,
        watch: AlertMonitor | None = None,
    ) -> None:
        self.folder = folder
        # A resumed run writes the steps after its checkpoint again; step 0 is never written twice.
        self._first = done + 1 if done else 0
        self._settings = settings
        self._enabled, self._watch = enabled, watch
        self._view = StepView(steps, start=done, enabled=enabled, live=settings.progress)
        self._writers: list[Writer] = []
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        if self._enabled:
            self._writers = open_writers(self.folder, self._settings, first_step=self._first)
            if self._watch is not None:  # What is left of an interrupted run is its past.
                for line in read_jsonl(self.folder.metrics):
                    self._watch.see(int(line["step"]), line)
        self._view.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)
        for writer in self._writers:
            writer.close()

    def validation(self, metrics: Mapping[str, float]) -> None:
        """Records the validation before the first step."""
        if self._enabled and metrics:
            for writer in self._writers:
                writer.scalars(0, metrics)
            self.alerts(0, metrics)
            self._view.message(f"validation before training: {_verdict(metrics)}")

    def alerts(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Records the alerts that a step raises; returns their names, none where this rank does not record.

        Args:
            step: steps finished. metrics: all of the step, the validation's too.
        """
        if not self._enabled or self._watch is None:
            return []
        raised = self._watch.see(step, metrics)
        for alert in raised:
            for writer in self._writers:
                writer.alert(step, alert)
            self._view.message(f"[bold yellow]alert {alert.name}[/] in step {step}: {escape(alert.message)}")
        return [alert.name for alert in raised]

    def failures(self, reasons: Mapping[str, str]) -> None:
        """Tells why rewards failed, of each once.

        Args:
            reasons: label of a reward -> why it did the first time.
        """
        for label in sorted(reasons.keys() - self._told):
            self._told.add(label)
            text = f"failed: {reasons[label]}; such responses get its failure_score, and this is told once"
            self._view.message(f"[bold yellow]reward {escape(label)}[/] {escape(text)}")

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        samples: Sequence[Mapping[str, Any]],
    ) -> None:
        """Records a finished step.

        Args:
            step: steps finished, >= 1. metrics: ``stage/quantity`` -> number. seconds: stage -> seconds.
            samples: rows for samples.jsonl.
        """
        if not self._enabled:
            return
        total = sum(seconds.values())
        timed = {f"time/{stage}_seconds": spent for stage, spent in seconds.items()}
        tokens = metrics.get("sample/tokens", metrics.get("data/loss_tokens", 0.0))
        rate = {"time/step_seconds": total, "time/tokens_per_second": tokens / total}
        for writer in self._writers:
            writer.scalars(step, {**metrics, **timed, **rate})
            writer.samples(step, samples)
        self._view.step(metrics, seconds)

    def finish(self) -> None:
        """Draws the curves and says where everything is."""
        if not self._enabled:
            return
        plot([self.folder.path], self.folder.curves)
        judged = [line for line in read_jsonl(self.folder.metrics) if _verdict(line)]
        lines = [f"run folder   {self.folder.path}"]
        if judged:
            lines.append(f"validation   start {_verdict(judged[0])}")
            lines.append(f"             end   {_verdict(judged[-1])}")
        lines.append(f"curves       {self.folder.curves}")
        if self._settings.tensorboard:
            lines.append(f"TensorBoard  tensorboard --logdir {self.folder.path}")
        self._view.message("\n".join(lines))


JUDGED = ("accuracy", "calibration_error", "length_correlation")
"""What a validation on fixed answers is summed up by, as far as it is known."""


def _verdict(metrics: Mapping[str, float | None]) -> str:
    """Returns a validation as a sentence shows it: the score with its interval, or the loss; "" if none."""
    if (score := metrics.get("eval/score")) is not None:
        low, high = (metrics[f"eval/score_{end}"] for end in ("low", "high"))
        return (
            f"{score:.3f}  (95% interval {low:.3f} to {high:.3f}, {metrics['eval/num_prompts']:.0f} prompts)"
        )
    if (loss := metrics.get("eval/loss")) is not None:
        known = {name: metrics.get(f"eval/{name}") for name in JUDGED}
        more = "".join(f"{name.replace('_', ' ')} {x:.3f}, " for name, x in known.items() if x is not None)
        return f"loss {loss:.4f}  ({more}{metrics['eval/num_examples']:.0f} examples)"
    return ""
