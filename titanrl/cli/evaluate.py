"""``titanrl evaluate``: held-out scores of a model or a run, without training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from titanrl.cli.ranks import NPROC, become_ranks, world_size
from titanrl.cli.target import MODEL, TARGET, target_of
from titanrl.cli.train import SET
from titanrl.preflight.verify import load_checked
from titanrl.report.folder import write_atomic

if TYPE_CHECKING:
    from titanrl.eval.evaluate import EvalResult

__all__ = ["evaluate"]


def evaluate(
    target: TARGET,
    model: MODEL = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", help="Model or run folder to compare with on the same prompts.", show_default=False
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="JSON file for the numbers.", show_default=False)
    ] = None,
    overrides: SET = None,
    nproc: NPROC = 1,
) -> None:
    """Judge a model on [evaluation.prompts] without training; a run by its newest checkpoint."""
    ranks = world_size(nproc)
    judged = [target_of(target, each, overrides) for each in (model, *([against] if against else []))]
    experiments = [load_checked(each.file, each.overrides, ranks) for each in judged]
    given = {"model": model, "against": against, "to": to}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    become_ranks(nproc, ["evaluate", str(target), *options, *(f"--set={each}" for each in overrides or [])])
    from titanrl.eval.evaluate import evaluate_model

    verdict, *others = [evaluate_model(each, its.run) for each, its in zip(experiments, judged, strict=True)]
    if os.environ.get("RANK", "0") == "0":
        found = verdict.to_json()
        for each in (verdict, *others):
            Console().print(_table(each))
        for other in others:
            difference = verdict.minus(other)
            found["against"] = {**other.to_json(), "difference": difference.to_json()}
            typer.echo(
                f"score less that of {other.model}, prompt by prompt: {difference.mean:+.3f}  "
                f"(95% interval {difference.low:+.3f} to {difference.high:+.3f})"
            )
        if to is not None:
            write_atomic(to, json.dumps(found, indent=2) + "\n")


def _table(verdict: EvalResult) -> Table:
    caption = None
    if verdict.failures:
        why = "; ".join(f"{label}: {reason}" for label, reason in verdict.reasons.items())
        caption = escape(
            f"{verdict.failures} scores failed; they count as [[reward]] failure_score. First {why}"
        )
    title = f"{verdict.model}, {verdict.num_prompts} prompts"
    table = Table("held out", "mean", "95% interval", title=title, caption=caption)
    for name, estimate in verdict.estimates.items():
        table.add_row(name, f"{estimate.mean:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")
    return table
