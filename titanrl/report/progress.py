"""The live view of a run: a bar, the numbers people watch, where the time goes, what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["StepView", "clock", "counting"]

SHOWN = (
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
"""What the view shows of a step, as far as the run has it."""


LINES = 10
"""Lines that say how far a count has come, on a plain stream."""


class StepView:
    """A context that shows each finished step; on a plain stream it prints one line a step instead.

    Args:
        steps: of the whole run. start: first step of this process. enabled: false on all ranks but the first.
        live: false prints lines on a terminal too.
    """

    def __init__(
        self,
        steps: int,
        *,
        start: int = 0,
        enabled: bool = True,
        live: bool = True,
        console: Console | None = None,
    ) -> None:
        self.console = console or Console()
        self.is_live = enabled and live and self.console.is_terminal
        self.enabled, self.steps, self.done = enabled, steps, start
        self._start, self._began = start, time.monotonic()
        self._last: dict[str, float] = {}
        self._spent: dict[str, float] = {}
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
        """Prints a line above the live view."""
        if self.enabled:
            self.console.print(text, soft_wrap=True)

    def step(self, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Shows one finished step.

        Args:
            metrics: ``stage/quantity`` -> number. seconds: stage -> seconds of this step.
        """
        self.done += 1
        self._last.update(metrics)
        for stage, spent in seconds.items():
            self._spent[stage] = self._spent.get(stage, 0.0) + spent
        if not self.enabled:
            return
        self._bar.update(self._task, completed=self.done, left=f"{clock(self.seconds_left())} left")
        if self.is_live:
            self._live.update(self._view())
        else:
            shown = [f"{label} {number}" for label, number in self._numbers()]
            total = sum(seconds.values())
            numbers = "  ".join([*shown, f"{total:.1f} s", f"{clock(self.seconds_left())} left"])
            self.console.print(f"step {self.done}/{self.steps}  {numbers}", soft_wrap=True, highlight=False)

    def seconds_left(self) -> float:
        """Returns the time the remaining steps will take at the mean pace so far."""
        finished = max(self.done - self._start, 1)
        return (time.monotonic() - self._began) / finished * (self.steps - self.done)

    def _numbers(self) -> list[tuple[str, str]]:
        # Where rewards are sampled for, the loss itself says nothing: its mean is about 0 by construction.
        hidden = "loss/total" if "reward/mean" in self._last else ""
        return [
            (label, form.format(self._last[key]))
            for label, key, form in SHOWN
            if key in self._last and key != hidden
        ]

    def _view(self) -> Group:
        numbers = Table.grid(padding=(0, 3))
        numbers.add_row(*(f"[dim]{label}[/] {number}" for label, number in self._numbers()))
        total = sum(self._spent.values()) or 1.0
        split = "  ".join(f"[dim]{stage}[/] {spent / total:.0%}" for stage, spent in self._spent.items())
        return Group(self._bar, numbers, split)


@contextmanager
def counting(
    what: str, total: int, *, enabled: bool = True, live: bool = True, console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Yields what is to be told how many more are done; shows how far that is, on a plain stream in lines.

    Args:
        what: is counted, in words. total: of them. enabled: false on all ranks but the first.
        live: false prints lines on a terminal too.
    """
    console = console or Console()
    if not enabled:
        yield lambda count: None
    elif live and console.is_terminal:
        with _bar(console) as bar:
            task, began = bar.add_task(what, total=total, left=""), time.monotonic()

            def show(count: int) -> None:
                bar.advance(task, count)
                done = bar.tasks[0].completed
                left = (time.monotonic() - began) / max(done, 1) * (total - done)
                bar.update(task, left=f"{clock(left)} left")

            yield show
    else:
        done, lines = 0, 0

        def say(count: int) -> None:
            nonlocal done, lines
            done += count
            if done * LINES // max(total, 1) > lines:
                lines = done * LINES // max(total, 1)
                console.print(f"{what} {done}/{total}", soft_wrap=True, highlight=False)

        yield say


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), console=console,
    )  # fmt: skip


def clock(seconds: float) -> str:
    """Returns a time as minutes and seconds: ``75:08``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
