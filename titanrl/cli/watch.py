"""``titanrl watch``: a run in the terminal while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["watch"]


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show a run while it goes on: curves, stage times, alerts, answers; ends with its last step."""
    from titanrl.report.watch import watch as show

    show(run, once=once, every_seconds=every, console=Console())
