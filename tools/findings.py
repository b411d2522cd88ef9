"""``python -m tools.findings``: write docs/findings.md and docs/findings.png from the published ablations.

Results of ablations that were run in this clone are first copied to experiments/ablations/results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from titanrl.ablation import summary
from titanrl.ablation.comparison import Row, compare, evaluate_expectations, group_rows
from titanrl.ablation.files import markdown_table, read_results, results_csv
from titanrl.ablation.plan import is_ablation, outline
from titanrl.ablation.plot import AblationPanel, plot
from titanrl.ablation.settings import Settings
from titanrl.runtime.lazy import lazy_torch

__all__ = ["copy_results", "findings", "panels", "published"]

ROOT = Path(__file__).parents[1]
PHRASES = {
    "as expected": "as expected",
    "the opposite": "opposite to expectation",
    "undecided": "undecided",
    "too few seeds": "too few seeds",
    "not measured": "not measured",
}
INTRODUCTION = """\
<!-- Written by `python -m tools.findings`: do not edit. -->

# Findings

This page tests published claims, each with an [ablation](ablations.md) on a model of 20,000 weights. In
[the task]({folder}/largest_digit.py), the model must name the largest of four digits and may then write any
number of dots. The [initial model]({folder}/base_model.toml) answers a third of the prompts correctly. A
model of this size shows mechanisms, which follow from the formulas, rather than effect sizes. Disagreements
with a paper are stated.

```bash
titanrl model get tiny
titanrl train experiments/ablations/base_model.toml
titanrl export runs/base_model --output models/largest_digit
titanrl ablate experiments/ablations/NAME.toml --jobs 2
```

![Results of each claim: one point per seed, and the mean with its interval](findings.png)

Each point is one seed, thin lines connect the same seed across variants, and bars are means with their 95%
intervals. Outcomes are based on paired differences, so bars may overlap. `make docs` plots the figure from
[the results]({folder}/results).
"""


def findings(files: Sequence[Path], results: Path, folder: str) -> str:
    """Return the page.

    Args:
        files: ablation files.
        results: folder with a NAME.csv for each ablation that was run.
        folder: folder of the files, relative to the page.
    """
    index, parts, counts = [], [], []
    for file in files:
        settings, names, table = _results(file, results)
        counts.append(settings.seeds)
        outcomes = evaluate_expectations(settings, table)
        texts = [f"{each.expectation.variant}: {each.metric} {PHRASES[each.result]}" for each in outcomes]
        index.append([f"[{settings.title}](#{file.stem})", "; ".join(texts)])
        parts += [f'<a id="{file.stem}"></a>', f"## {settings.title}", settings.claim]
        parts.append(f"Source: {settings.source}. File: [{file.name}]({folder}/{file.name}).")
        parts.append(markdown_table(summary.outcome_table(outcomes, names[0])))
        parts += [settings.remark, summary.describe_values(settings.window)]
        parts += [
            f"{each.title}:\n\n{markdown_table(each)}"
            for each in summary.result_tables(table, names[0], settings.seeds)
        ]
    overview = markdown_table(summary.Table("", ["question", "outcome"], index))
    notes = ["## Reading the tables", *summary.reading_notes(max(counts))]
    blocks = [INTRODUCTION.format(folder=folder), overview, *parts, *notes]
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"


def panels(files: Sequence[Path], results: Path) -> list[AblationPanel]:
    """Return the panel of each ablation: the first metric that has an expectation, at the last budget."""
    panels = []
    for file in files:
        settings, _, table = _results(file, results)
        outcomes = evaluate_expectations(settings, table)
        metric = outcomes[0].metric
        result_of = {each.expectation.variant: each.result for each in outcomes if each.metric == metric}
        rows = [group for group in group_rows(table) if group[0].metric == metric][-1]
        panels.append(AblationPanel(settings.title, rows, result_of))
    return panels


def _results(file: Path, results: Path) -> tuple[Settings, list[str], list[Row]]:
    """Return an ablation's settings, the names of its variants, baseline first, and their comparison."""
    settings, variants = outline(file)
    names = [variant.name for variant in variants]
    return settings, names, compare(read_results(results / f"{file.stem}.csv"), names)


def copy_results(runs: Path, files: Sequence[Path], results: Path) -> None:
    """Copy the results of ablations that were run, at budgets of steps, to the published results.

    Args:
        runs: folder of the ablations' runs.
        files: ablation files.
        results: folder of the published results.
    """
    for file in files:
        new = runs / file.stem / "results.csv"
        if new.is_file():
            at_steps = [each for each in read_results(new) if each.budget == "steps"]
            (results / f"{file.stem}.csv").write_text(results_csv(at_steps), "utf-8")


def published(folder: Path) -> list[Path]:
    """Return the ablation files of a folder."""
    return [file for file in sorted(folder.glob("*.toml")) if is_ablation(file)]


if __name__ == "__main__":
    lazy_torch()
    folder = ROOT / "experiments" / "ablations"
    copy_results(Path("runs/ablations"), published(folder), folder / "results")
    page = findings(published(folder), folder / "results", "../experiments/ablations")
    (ROOT / "docs" / "findings.md").write_text(page, "utf-8")
    plot(panels(published(folder), folder / "results"), ROOT / "docs" / "findings.png")
