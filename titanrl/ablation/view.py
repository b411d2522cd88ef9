"""Live view of an ablation: a table in a terminal, otherwise one line per completed run."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from titanrl.ablation.curves import read_curves
from titanrl.ablation.execute import Execution
from titanrl.ablation.plan import Plan, PlannedRun
from titanrl.ablation.statistics import mean_interval
from titanrl.report.progress import clock

__all__ = ["AblationView"]

FINISHED, FAILED = "[green]●[/]", "[red]×[/]"
RUNNING, WAITING = "[yellow]◐[/]", "[dim]○[/]"


class AblationView:
    """A context manager whose ``show`` is called repeatedly with the state of the execution."""

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self.console = console or Console()
        self._plan = plan
        self._live = Live(console=self.console, refresh_per_second=2, auto_refresh=False)
        self._began = time.monotonic()
        self._last_update = -1.0
        self._num_logged = 0
        self._num_before: int | None = None
        self._values: dict[tuple[str, int], float | None] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def show(self, execution: Execution) -> None:
        """Show the state: at most twice per second in a terminal, otherwise a line per completed run."""
        if self._num_before is None:
            self._num_before = len(execution.finished) + len(execution.failed)
        if not self.console.is_terminal:
            self._log(execution)
        elif (now := time.monotonic()) - self._last_update >= 0.5 or not execution.running:
            self._last_update = now
            self._live.update(self._table(execution), refresh=True)

    def _log(self, execution: Execution) -> None:
        completed = len(execution.finished) + len(execution.failed)
        if completed == self._num_logged:
            return
        self._num_logged = completed
        parts = [f"{completed}/{len(self._plan.runs)} runs"]
        if execution.failed:
            parts.append(f"{len(execution.failed)} failed")
        if execution.finished:
            last = execution.finished[-1]
            parts.append(f"{last.variant} seed {last.seed}: {self._plan.settings.metric} {self._text(last)}")
        parts.append(f"{clock(self._seconds_left(execution))} left")
        self.console.print("  ".join(parts), soft_wrap=True, highlight=False, markup=False)

    def _table(self, execution: Execution) -> Table:
        plan = self._plan
        elapsed, left = clock(time.monotonic() - self._began), clock(self._seconds_left(execution))
        title = escape(plan.settings.title or plan.name)
        metric = plan.settings.metric
        table = Table(
            "variant", "seeds", "running", metric, caption=f"{elapsed} elapsed, {left} left", title=title
        )
        finished = {(run.variant, run.seed) for run in execution.finished}
        failed = {(each.run.variant, each.run.seed) for each in execution.failed}
        running = {(run.variant, run.seed): run for run, _ in execution.running.values()}
        for variant in plan.variants:
            keys = [(variant.name, seed) for seed in range(plan.settings.seeds)]
            marks = [
                FINISHED
                if key in finished
                else FAILED
                if key in failed
                else RUNNING
                if key in running
                else WAITING
                for key in keys
            ]
            steps = [
                f"seed {run.seed}: {run.steps_done()}/{run.experiment.loop.steps}"
                for (name, _), run in running.items()
                if name == variant.name
            ]
            mean = self._mean(variant.name, execution)
            table.add_row(escape(variant.name), "".join(marks), ", ".join(steps), mean)
        return table

    def _mean(self, variant: str, execution: Execution) -> str:
        recorded = [self._value(run) for run in execution.finished if run.variant == variant]
        values = [value for value in recorded if value is not None]
        if not values:
            return ""
        mean, low, _ = mean_interval(values)
        return f"{mean:.4g}" + (f" ± {mean - low:.2g}" if len(values) > 1 else "")

    def _value(self, run: PlannedRun) -> float | None:
        """Return the deciding metric at the end of a finished run; each run is read once."""
        key = (run.variant, run.seed)
        if key not in self._values:
            metric, window = self._plan.settings.metric, self._plan.settings.window
            curves = read_curves(run.folder.path, [metric])
            self._values[key] = curves.at(metric, "steps", curves.total("steps"), window)
        return self._values[key]

    def _text(self, run: PlannedRun) -> str:
        value = self._value(run)
        return "absent" if value is None else f"{value:.4g}"

    def _seconds_left(self, execution: Execution) -> float:
        completed = len(execution.finished) + len(execution.failed) - (self._num_before or 0)
        remaining = len(execution.waiting) + len(execution.running)
        return (time.monotonic() - self._began) / max(completed, 1) * remaining
