"""``titanrl report``: one or several runs as a page, or their curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.errors import ConfigError
from titanrl.runtime.lazy import lazy_torch

__all__ = ["report"]

PICTURES = (".png", ".svg", ".pdf")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    to: Annotated[
        Path, typer.Option("--to", help="Page (.html), or picture of the main curves (.png, .svg, .pdf).")
    ] = Path("report.html"),
) -> None:
    """Show runs, overlaid, on one page that needs no network: results, curves, times, samples, settings."""
    if to.suffix not in (".html", *PICTURES):
        raise ConfigError(f"--to must end in one of .html, {', '.join(PICTURES)}, got {str(to)!r}.")
    if to.suffix == ".html":
        from titanrl.report.run_report import write_report

        lazy_torch()
        write_report(runs, to)
    else:
        from titanrl.report.curves import plot

        plot(runs, to)
    typer.echo(f"{to} is ready.")
