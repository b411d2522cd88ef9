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
from titanrl.report.folder import write_atomic
from titanrl.verify import verified

if TYPE_CHECKING:
    from titanrl.loop.evaluation import Verdict

__all__ = ["evaluate"]


def evaluate(
    target: TARGET,
    model: MODEL = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="JSON file for the numbers.", show_default=False)
    ] = None,
    overrides: SET = None,
    nproc: NPROC = 1,
) -> None:
    """Judge a model on [evaluation.prompts] without training; a run by its newest checkpoint."""
    ranks, judged = world_size(nproc), target_of(target, model, overrides)
    experiment = verified(judged.file, judged.overrides, ranks)
    options = [f"--{name}={value}" for name, value in (("model", model), ("to", to)) if value is not None]
    become_ranks(nproc, ["evaluate", str(target), *options, *(f"--set={each}" for each in overrides or [])])
    from titanrl.loop.evaluation import evaluate_model

    verdict = evaluate_model(experiment, judged.run)
    if os.environ.get("RANK", "0") == "0":
        Console().print(_table(verdict))
        if to is not None:
            write_atomic(to, json.dumps(verdict.to_json(), indent=2) + "\n")


def _table(verdict: Verdict) -> Table:
    caption = None
    if verdict.failures:
        why = "; ".join(f"{label}: {reason}" for label, reason in verdict.reasons.items())
        caption = escape(f"{verdict.failures} scores failed; they count as [[reward]] failure. First {why}")
    title = f"{verdict.model}, {verdict.num_prompts} prompts"
    table = Table("held out", "mean", "95% interval", title=title, caption=caption)
    for name, estimate in verdict.estimates.items():
        table.add_row(name, f"{estimate.mean:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")
    return table
