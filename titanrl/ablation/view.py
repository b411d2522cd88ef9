"""The live table of an ablation; on a plain stream, a line for each run that ends."""

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


class AblationView:
    """A context whose ``show`` is given the state again and again."""

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self.console = console or Console()
        self._plan = plan
        self._live = Live(console=self.console, refresh_per_second=2, auto_refresh=False)
        self._began = time.monotonic()
        self._drawn = -1.0
        self._told = 0
        self._before: int | None = None
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
        """Shows the state: at most twice a second, or what is new of it."""
        if self._before is None:
            self._before = len(execution.finished) + len(execution.failed)
        if not self.console.is_terminal:
            self._tell(execution)
        elif (now := time.monotonic()) - self._drawn >= 0.5 or not execution.running:
            self._drawn = now
            self._live.update(self._table(execution), refresh=True)

    def _tell(self, execution: Execution) -> None:
        ended = len(execution.finished) + len(execution.failed)
        if ended == self._told:
            return
        self._told = ended
        parts = [f"{ended}/{len(self._plan.runs)} runs"]
        if execution.failed:
            parts.append(f"{len(execution.failed)} failed")
        if execution.finished:
            last = execution.finished[-1]
            parts.append(f"{last.variant} seed {last.seed}: {self._plan.settings.metric} {self._shown(last)}")
        parts.append(f"{clock(self._seconds_left(execution))} left")
        self.console.print("  ".join(parts), soft_wrap=True, highlight=False, markup=False)

    def _table(self, execution: Execution) -> Table:
        plan = self._plan
        left = f"{clock(time.monotonic() - self._began)} so far, {clock(self._seconds_left(execution))} left"
        table = Table(
            "variant", "seeds", "running", plan.settings.metric, caption=left,
            title=escape(plan.settings.title or plan.name),
        )  # fmt: skip
        finished = {(run.variant, run.seed) for run in execution.finished}
        failed = {(each.run.variant, each.run.seed) for each in execution.failed}
        running = {(run.variant, run.seed): run for run, _ in execution.running.values()}
        for variant in plan.variants:
            keys = [(variant.name, seed) for seed in range(plan.settings.seeds)]
            marks = "".join(
                "[green]●[/]" if key in finished else "[red]×[/]" if key in failed
                else "[yellow]◐[/]" if key in running else "[dim]○[/]"
                for key in keys
            )  # fmt: skip
            steps = ", ".join(
                f"seed {run.seed}: {run.steps_done()}/{run.experiment.loop.steps}"
                for key, run in running.items() if key[0] == variant.name
            )  # fmt: skip
            table.add_row(escape(variant.name), marks, steps, self._summary(variant.name, execution))
        return table

    def _summary(self, variant: str, execution: Execution) -> str:
        found = [self._value(run) for run in execution.finished if run.variant == variant]
        values = [value for value in found if value is not None]
        if not values:
            return ""
        mean, low, _ = mean_interval(values)
        return f"{mean:.4g}" + (f" ± {mean - low:.2g}" if len(values) > 1 else "")

    def _value(self, run: PlannedRun) -> float | None:
        """Returns the deciding metric at the end of a finished run, read once."""
        key = (run.variant, run.seed)
        if key not in self._values:
            metric, window = self._plan.settings.metric, self._plan.settings.window
            curves = read_curves(run.folder.path, [metric])
            self._values[key] = curves.at(metric, "steps", curves.total("steps"), window)
        return self._values[key]

    def _shown(self, run: PlannedRun) -> str:
        value = self._value(run)
        return "absent" if value is None else f"{value:.4g}"

    def _seconds_left(self, execution: Execution) -> float:
        ended = len(execution.finished) + len(execution.failed) - (self._before or 0)
        left = len(execution.waiting) + len(execution.running)
        return (time.monotonic() - self._began) / max(ended, 1) * left
