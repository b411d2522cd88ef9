"""``titanrl report``: write a page of one or several runs, or a figure of their main curves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titanrl.errors import ConfigError
from titanrl.runtime.lazy import lazy_torch

__all__ = ["report"]

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option("--output", help="Page (.html), or figure of the main curves (.png, .svg, .pdf)."),
    ] = Path("report.html"),
) -> None:
    """Show runs, overlaid, on one offline page: results, curves, stage times, samples, settings."""
    if output.suffix not in (".html", *FIGURE_SUFFIXES):
        raise ConfigError(
            f"--output must end in one of .html, {', '.join(FIGURE_SUFFIXES)}, got {str(output)!r}."
        )
    if output.suffix == ".html":
        from titanrl.report.run_report import write_report

        lazy_torch()
        write_report(runs, output)
    else:
        from titanrl.report.curves import plot

        plot(runs, output)
    typer.echo(f"wrote {output}")
