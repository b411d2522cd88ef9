"""``python -m tools.bench report``: compare the results of `make bench` with the stored ratios."""

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

bench = typer.Typer(help="Report the results of the benchmark suite.", no_args_is_help=True)

LOG_WIDTH = 140
"""Number of columns outside a terminal: enough for one line per ratio."""
BAR_WIDTH = 40
"""Number of columns of a bar, from a ratio of 0.1 to 1000."""


@bench.callback()
def _group() -> None:
    """Keep `report` a subcommand: typer drops the name of a single command."""


@bench.command("report")
def report(
    results: Annotated[list[Path], typer.Argument(help="Result files of `make bench`.", show_default=False)],
    baseline: Annotated[Path, typer.Option(help="Stored ratios.")] = Path("benchmarks/baseline.json"),
    page: Annotated[Path, typer.Option(help="Page written by --accept.")] = Path("docs/performance.md"),
    accept: Annotated[bool, typer.Option("--accept", help="Store the ratios and write the page.")] = False,
) -> None:
    """Print the ratios to peers with their spread; fail if one is significantly below the stored ratio."""
    from tools import benchmark_results, ratios_plot

    for file in results:
        if not file.is_file():
            raise typer.BadParameter(f"{str(file)!r} does not exist; run `make bench` first.")
    new = sorted(
        ratio for file in results for ratio in benchmark_results.parse_results(file.read_text("utf-8"))
    )
    stored = benchmark_results.loads(baseline.read_text("utf-8")) if baseline.is_file() else []
    stored_by_key = {ratio.key: ratio for ratio in stored}
    worse = [
        each
        for each in new
        if each.key in stored_by_key and benchmark_results.has_regressed(each, stored_by_key[each.key])
    ]
    scale = f"0.1 {'·' * (BAR_WIDTH - 9)} 1000"
    table = Table("benchmark", "peer", "ratio", "spread", "stored", scale, box=None)
    for each in new:
        before = stored_by_key.get(each.key)
        spread = "" if each.low is None else f"{each.low:g} to {each.high:g}"
        style = "red" if each in worse else ""
        stored_ratio = "" if before is None else f"{before.ratio:g}"
        cells = (escape(each.name), each.peer, f"{each.ratio:g}", spread, stored_ratio, _bar(each))
        table.add_row(*cells, style=style)
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    console.print(table)
    if accept:
        ratios = benchmark_results.merge(stored, new)
        baseline.write_text(benchmark_results.dumps(ratios), "utf-8")
        page.write_text(benchmark_results.page(ratios, baseline.parent), "utf-8")
        figure = ratios_plot.plot(ratios, page.with_suffix(".png"))
        typer.echo(f"wrote {baseline}, {page} and {figure}")
    elif worse:
        names = ", ".join(f"{each.test} ({each.peer})" for each in worse)
        typer.secho(f"below the stored ratio: {names}", fg="red", err=True)
        raise typer.Exit(1)


def _bar(ratio: Ratio) -> str:
    """Return a ratio and its spread on a logarithmic scale, with a mark at 1."""

    def column(value: float) -> int:
        return min(max(round((math.log10(value) + 1) / 4 * (BAR_WIDTH - 1)), 0), BAR_WIDTH - 1)

    line = [" "] * BAR_WIDTH
    line[column(1.0)] = "│"
    if ratio.low is not None and ratio.high is not None:
        for i in range(column(ratio.low), column(ratio.high) + 1):
            line[i] = "─"
    line[column(ratio.ratio)] = "●"
    return "".join(line)


if __name__ == "__main__":
    bench()
