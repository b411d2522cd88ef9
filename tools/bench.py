"""``python -m tools.bench report``: what `make bench` measured, against the stored ratios."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tools.benchmark_results import Ratio

__all__ = ["bench"]

bench = typer.Typer(help="Results of the benchmark suite.", no_args_is_help=True)

WIDE = 140
"""Columns of what is no terminal, such as a log: enough for a line a ratio."""
WIDTH = 40
"""Columns of the drawing; its left end is a tenth as fast, its right end a thousand times."""


@bench.callback()
def _group() -> None:
    """Keeps `report` a command of its own: typer would drop the name of a single one."""


@bench.command("report")
def report(
    results: Annotated[list[Path], typer.Argument(help="What `make bench` wrote.", show_default=False)],
    baseline: Annotated[Path, typer.Option(help="Stored ratios.")] = Path("benchmarks/baseline.json"),
    page: Annotated[Path, typer.Option(help="Page that --accept writes.")] = Path("docs/performance.md"),
    accept: Annotated[bool, typer.Option("--accept", help="Store the ratios and write the page.")] = False,
) -> None:
    """Draw ratios to peers with their spread; fail if one is below the stored one by more than noise."""
    from tools import benchmark_results, ratios_plot

    for file in results:
        if not file.is_file():
            raise typer.BadParameter(f"{str(file)!r} is no file; run `make bench` first.")
    new = sorted(ratio for file in results for ratio in benchmark_results.measured(file.read_text("utf-8")))
    stored = benchmark_results.loads(baseline.read_text("utf-8")) if baseline.is_file() else []
    known = {ratio.key: ratio for ratio in stored}
    worse = [each for each in new if each.key in known and benchmark_results.regressed(each, known[each.key])]
    table = Table("benchmark", "peer", "ratio", "spread", "stored", f"0.1 {'·' * (WIDTH - 9)} 1000", box=None)
    for each in new:
        before = known.get(each.key)
        spread = "" if each.low is None else f"{each.low:g} to {each.high:g}"
        style = "red" if each in worse else ""
        told = "" if before is None else f"{before.ratio:g}"
        table.add_row(escape(each.name), each.peer, f"{each.ratio:g}", spread, told, drawn(each), style=style)
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    console.print(table)
    if accept:
        kept = benchmark_results.merged(stored, new)
        baseline.write_text(benchmark_results.dumps(kept), "utf-8")
        page.write_text(benchmark_results.page(kept, baseline.parent), "utf-8")
        picture = ratios_plot.plot(kept, page.with_suffix(".png"))
        typer.echo(f"{baseline}, {page} and {picture} are written.")
    elif worse:
        names = ", ".join(f"{each.test} ({each.peer})" for each in worse)
        typer.secho(f"slower than stored: {names}", fg="red", err=True)
        raise typer.Exit(1)


def drawn(ratio: Ratio) -> str:
    """Returns a ratio and its spread on a logarithmic line; the bar stands at 1."""

    def place(value: float) -> int:
        return min(max(round((math.log10(value) + 1) / 4 * (WIDTH - 1)), 0), WIDTH - 1)

    line = [" "] * WIDTH
    line[place(1.0)] = "│"
    if ratio.low is not None and ratio.high is not None:
        for i in range(place(ratio.low), place(ratio.high) + 1):
            line[i] = "─"
    line[place(ratio.ratio)] = "●"
    return "".join(line)


if __name__ == "__main__":
    bench()
