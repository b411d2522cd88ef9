"""``titanrl watch``: follow a run in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["watch"]


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 2.0,
) -> None:
    """Follow a run: curves, stage times, alerts, responses. Exits after the run's last step."""
    from titanrl.report.watch import watch as show

    show(run, once=once, every_seconds=every, console=Console())
