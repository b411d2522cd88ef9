"""docs/findings.md and its picture, from the ablations and their results.

``python -m tools.findings`` writes them.
Results of runs in this folder are taken first, into experiments/ablations/results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from titanrl.ablation import summary
from titanrl.ablation.comparison import Row, blocks, compare, verdicts
from titanrl.ablation.files import markdown_table, read_results, results_csv
from titanrl.ablation.plan import is_ablation, outline
from titanrl.ablation.plot import Panel, plot
from titanrl.ablation.settings import Settings
from titanrl.runtime.lazy import lazy_torch

__all__ = ["findings", "panels", "published", "take"]

ROOT = Path(__file__).parents[1]
INTRODUCTION = """\
<!-- Written by `python -m tools.findings`: do not edit. -->

# Findings

Published claims, each an [ablation](ablations.md) on a model of 20,000 weights. It has to name the largest
of four digits, then may write as many dots as it likes ([the task]({folder}/largest_digit.py)), and
[begins]({folder}/base_model.toml) with a third of its answers right. So small a model shows mechanisms,
which follow from the formulas, better than sizes of effects. Where it disagrees with a paper, that is said.

```bash
titanrl model get tiny
titanrl train experiments/ablations/base_model.toml
titanrl export runs/base_model --to models/largest_digit
titanrl ablate experiments/ablations/NAME.toml --jobs 2
```

![Each claim: a point a seed, and the mean with its interval](findings.png)

A point is a seed, a thread joins equal seeds, a bar is the mean with its 95% interval. Outcomes are those
of the differences seed by seed, so bars may overlap. `make docs` draws it from
[the results]({folder}/results).
"""


def findings(files: Sequence[Path], results: Path, folder: str) -> str:
    """Returns the page.

    Args:
        files: ablation files. results: folder with a NAME.csv for each that has been run. folder: the
            files' folder as the page links to it.
    """
    index, parts, counts = [], [], []
    for file in files:
        settings, names, table = _results(file, results)
        counts.append(settings.seeds)
        found = verdicts(settings, table)
        outcomes = "; ".join(f"{each.metric} of {each.expectation.variant} {each.outcome}" for each in found)
        index.append([f"[{settings.title}](#{file.stem})", outcomes])
        parts += [f'<a id="{file.stem}"></a>', f"## {settings.title}", settings.claim]
        parts.append(f"Source: {settings.source}. File: [{file.name}]({folder}/{file.name}).")
        parts.append(markdown_table(summary.verdict_table(found, names[0])))
        parts += [settings.remark, summary.values_are(settings.window)]
        parts += [
            f"{each.title}:\n\n{markdown_table(each)}"
            for each in summary.results(table, names[0], settings.seeds)
        ]
    listed = markdown_table(summary.Table("", ["question", "outcome"], index))
    read = ["## How to read the tables", *summary.how_to_read(max(counts))]
    whole = [INTRODUCTION.format(folder=folder), listed, *parts, *read]
    return "\n\n".join(part.strip() for part in whole if part.strip()) + "\n"


def panels(files: Sequence[Path], results: Path) -> list[Panel]:
    """Returns what the picture shows of each ablation: the first metric of which something is expected."""
    found = []
    for file in files:
        settings, _, table = _results(file, results)
        told = verdicts(settings, table)
        metric = told[0].metric
        outcomes = {each.expectation.variant: each.outcome for each in told if each.metric == metric}
        block = [each for each in blocks(table) if each[0].metric == metric][-1]
        found.append(Panel(settings.title, block, outcomes))
    return found


def _results(file: Path, results: Path) -> tuple[Settings, list[str], list[Row]]:
    """Returns an ablation's settings, its variants' names, the baseline first, and the table of its runs."""
    settings, variants = outline(file)
    names = [variant.name for variant in variants]
    return settings, names, compare(read_results(results / f"{file.stem}.csv"), names)


def take(runs: Path, files: Sequence[Path], results: Path) -> None:
    """Copies results of ablations that have run, those at budgets of steps, to where the page finds them."""
    for file in files:
        made = runs / file.stem / "results.csv"
        if made.is_file():
            kept = [each for each in read_results(made) if each.budget == "steps"]
            (results / f"{file.stem}.csv").write_text(results_csv(kept), "utf-8")


def published(folder: Path) -> list[Path]:
    """Returns the ablation files of a folder."""
    return [file for file in sorted(folder.glob("*.toml")) if is_ablation(file)]


if __name__ == "__main__":
    lazy_torch()
    folder = ROOT / "experiments" / "ablations"
    take(Path("runs/ablations"), published(folder), folder / "results")
    page = findings(published(folder), folder / "results", "../experiments/ablations")
    (ROOT / "docs" / "findings.md").write_text(page, "utf-8")
    plot(panels(published(folder), folder / "results"), ROOT / "docs" / "findings.png")
