"""Live view of a run: a progress bar, the main metrics, stage times, the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["StepView", "clock", "progress_bar"]

METRICS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("loss", "loss/total", "{:.4f}"),
    ("accuracy", "loss/accuracy", "{:.3f}"),
    ("margin", "loss/margin", "{:+.3f}"),
    ("length", "sample/response_tokens_mean", "{:.1f}"),
    ("KL", "kl/value", "{:+.4f}"),
    ("entropy", "loss/entropy", "{:.3f}"),
    ("clip", "loss/clip_fraction", "{:.3f}"),
    ("grad", "update/grad_norm", "{:.2f}"),
    ("rows", "rft/rows", "{:.0f}"),
    ("eval", "eval/score", "{:.3f}"),
    ("eval loss", "eval/loss", "{:.4f}"),
)
"""Label, metric and format of the values of a step; missing metrics are left out."""
NUM_LINES = 10
"""Number of progress lines outside a terminal."""


class StepView:
    """A context manager that shows each finished step; outside a terminal it prints one line per step.

    Args:
        steps: number of steps of the whole run.
        start: number of steps finished before.
        enabled: whether this rank shows anything; true on rank 0 only.
        live: whether a terminal gets a live view; otherwise it gets lines, too.
        console: where to show.
        log: called with each line of text, also where a live view shows a step instead.
        constant: metrics that are 0 by construction in most steps of this run, and not shown then.
    """

    def __init__(
        self,
        steps: int,
        *,
        start: int = 0,
        enabled: bool = True,
        live: bool = True,
        console: Console | None = None,
        log: Callable[[str], None] = lambda _: None,
        constant: Collection[str] = (),
    ) -> None:
        self.console = console or Console()
        self._log = log
        self.is_live = enabled and live and self.console.is_terminal
        self.enabled, self.steps, self.done = enabled, steps, start
        self._start, self._constant = start, constant
        self._first_end: float | None = None
        self._metrics: dict[str, float] = {}
        self._validation: dict[str, tuple[int, float]] = {}
        self._seconds: dict[str, float] = {}
        self._bar = _bar(self.console)
        self._task = self._bar.add_task("step", total=steps, completed=start, left="")
        self._live = Live(self._view(), console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.update(self._view())
            self._live.stop()

    def message(self, text: str) -> None:
        """Print a line above the live view."""
        if self.enabled:
            self._log(Text.from_markup(text).plain)
            self.console.print(text, soft_wrap=True)

    def step(self, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Show one finished step.

        Args:
            metrics: ``stage/quantity`` -> number.
            seconds: stage -> seconds of this step.
        """
        self.done += 1
        if self._first_end is None:
            self._first_end = time.monotonic()
        self._metrics = dict(metrics)
        self._validation |= {
            key: (self.done, value) for key, value in metrics.items() if key.startswith("eval/")
        }
        for stage, duration in seconds.items():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + duration
        if not self.enabled:
            return
        left = self.seconds_left()
        left_text = [] if left is None else [f"{clock(left)} left"]
        self._bar.update(self._task, completed=self.done, left="".join(left_text))
        skipped = skipped_text(metrics)
        values = [f"{label} {value}" for label, value in self._values()]
        parts = [*filter(None, [skipped]), *values, f"{sum(seconds.values()):.1f} s", *left_text]
        text = f"step {self.done}/{self.steps}  {'  '.join(parts)}"
        self._log(text)
        if self.is_live:
            if skipped:
                self.message(f"step {self.done}/{self.steps}  {skipped}")
            self._live.update(self._view())
        else:
            self.console.print(text, soft_wrap=True, highlight=False)

    def seconds_left(self) -> float | None:
        """Return the estimated time of the remaining steps at the mean pace of the steps after the first.

        The first step of a process also compiles and warms up, so it says nothing about the others: None
        after it, unless it was the last.
        """
        num_timed = self.done - self._start - 1
        if self._first_end is None or (num_timed < 1 and self.done < self.steps):
            return None
        return (time.monotonic() - self._first_end) / max(num_timed, 1) * (self.steps - self.done)

    def _values(self) -> list[tuple[str, str]]:
        """Return label and text of the values that the last step measured."""
        # The policy-gradient loss is about 0 by construction.
        hidden = {"loss/total"} if "reward/mean" in self._metrics else set()
        hidden |= {key for key in self._constant if not self._metrics.get(key)}
        return [
            (label, form.format(self._metrics[key]))
            for label, key, form in METRICS
            if key in self._metrics and key not in hidden
        ]

    def _earlier(self) -> list[tuple[str, str]]:
        """Return label and text of the last validation's values, with its step, if an earlier step did it."""
        return [
            (label, f"{form.format(self._validation[key][1])} in step {self._validation[key][0]}")
            for label, key, form in METRICS
            if key in self._validation and key not in self._metrics
        ]

    def _view(self) -> Group:
        values = Table.grid(padding=(0, 3))
        skipped = [f"[bold yellow]{text}[/]"] if (text := skipped_text(self._metrics)) else []
        labelled = [*self._values(), *self._earlier()]
        values.add_row(*skipped, *(f"[dim]{label}[/] {value}" for label, value in labelled))
        total = sum(self._seconds.values()) or 1.0
        shares = "  ".join(f"[dim]{stage}[/] {each / total:.0%}" for stage, each in self._seconds.items())
        return Group(self._bar, values, shares)


def skipped_text(metrics: Mapping[str, float]) -> str:
    """Return how many optimizer steps were skipped, and why; "" if none: see docs/alerts.md."""
    texts = []
    for stage, model in (("update", ""), ("critic", "critic's ")):
        share = metrics.get(f"{stage}/skipped", 0.0)
        if share:
            why = "not finite" if metrics.get(f"{stage}/nonfinite_gradients") else "zero"
            steps = "step" if share == 1 else f"{share:.0%} of optimizer steps"
            texts.append(f"{model}{steps} skipped: gradient {why}")
    return ", ".join(texts)


@contextmanager
def progress_bar(
    description: str, total: int, *, enabled: bool = True, live: bool = True, console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar by a count; outside a terminal, lines are printed.

    Args:
        description: items that are counted, in words.
        total: number of items.
        enabled: whether this rank shows anything; true on rank 0 only.
        live: whether a terminal gets a bar; otherwise it gets lines, too.
        console: where to show.
    """
    console = console or Console()
    if not enabled:
        yield lambda count: None
    elif live and console.is_terminal:
        with _bar(console) as bar:
            task, began = bar.add_task(description, total=total, left=""), time.monotonic()

            def advance(count: int) -> None:
                bar.advance(task, count)
                done = bar.tasks[0].completed
                left = (time.monotonic() - began) / max(done, 1) * (total - done)
                bar.update(task, left=f"{clock(left)} left")

            yield advance
    else:
        done, num_printed = 0, 0

        def print_progress(count: int) -> None:
            nonlocal done, num_printed
            done += count
            if done * NUM_LINES // max(total, 1) > num_printed:
                num_printed = done * NUM_LINES // max(total, 1)
                console.print(f"{description} {done}/{total}", soft_wrap=True, highlight=False)

        yield print_progress


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
    )


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds: ``75:08``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
