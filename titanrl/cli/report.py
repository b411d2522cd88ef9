"""``titanrl report``: the curves of one or several runs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="Picture to write (.png, .svg, .pdf).")] = Path(
        "curves.png"
    ),
) -> None:
    """Draw the curves of runs, overlaid: held-out score, reward, length, KL, entropy, gradient norm."""
    from titanrl.report.curves import plot

    typer.echo(f"{plot(runs, to)} is ready.")
