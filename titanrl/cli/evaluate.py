"""``titanrl evaluate``: score a model or a run on held-out prompts, without training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from titanrl.cli.ranks import NPROC, become_ranks, stoppable, supervised, world_size
from titanrl.cli.target import MODEL, STEP, TARGET, Target, resolve_target
from titanrl.cli.train import SET
from titanrl.preflight.verify import load_checked
from titanrl.report.folder import write_atomic
from titanrl.runtime.stop import StopRequested

if TYPE_CHECKING:
    from titanrl.eval.evaluate import EvalResult

__all__ = ["evaluate"]


@supervised
def evaluate(
    target: TARGET,
    model: MODEL = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="Model or run folder to compare with on the same prompts.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="JSON file that the scores are written to.", show_default=False),
    ] = None,
    step: STEP = None,
    overrides: SET = None,
    nproc: NPROC = 1,
) -> None:
    """Score a model on [evaluation.prompts] without training; of a run, the newest checkpoint.

    Of a run given as --baseline, the newest checkpoint is evaluated.
    """
    ranks = world_size(nproc)
    targets = [resolve_target(target, model, overrides, step)]
    if baseline is not None:
        targets.append(resolve_target(target, baseline, overrides))
    experiments = [load_checked(each.file, each.overrides, ranks) for each in targets]
    given = {"model": model, "baseline": baseline, "output": output, "step": step}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    become_ranks(nproc, ["evaluate", str(target), *options, *(f"--set={each}" for each in overrides or [])])
    is_main = os.environ.get("RANK", "0") == "0"
    results: list[EvalResult] = []
    with stoppable(experiments[0].run.stop_seconds, experiments[0].run.stall_seconds):
        from titanrl.eval.evaluate import evaluate_model

        for experiment, each in zip(experiments, targets, strict=True):
            try:
                results.append(evaluate_model(experiment, each.run, each.step))
            except StopRequested as stopped:
                raise StopRequested(_partial(results, targets)) from stopped
            if is_main:
                Console().print(_table(results[-1]))
    if not is_main:
        return
    result, *baselines = results
    summary = result.to_json()
    for other in baselines:
        difference = result.minus(other)
        summary["baseline"] = {**other.to_json(), "difference": difference.to_json()}
        typer.echo(
            f"paired score difference from {other.model}: {difference.mean:+.3f}  "
            f"(95% interval {difference.low:+.3f} to {difference.high:+.3f})"
        )
    if output is not None:
        write_atomic(output, json.dumps(summary, indent=2) + "\n")


def _partial(results: Sequence[EvalResult], targets: Sequence[Target]) -> str:
    """Return what an interrupted evaluation has and has not done."""
    models = [str(each.run or each.file) for each in targets]
    missing = f"{models[len(results)]} was not evaluated, and no file was written"
    return f"the result above is partial: {missing}." if results else f"{missing}."


def _table(result: EvalResult) -> Table:
    caption = None
    if result.failures:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in result.reasons.items())
        left_out = f", but {result.unscored} responses are left out" if result.unscored else ""
        caption = escape(
            f"{result.failures} rewards failed and count as [[reward]] failure_score{left_out}. "
            f"First errors: {reasons}"
        )
    title = f"{result.model}, {result.num_prompts} prompts"
    table = Table("metric", "mean", "95% interval", title=title, caption=caption)
    for name, estimate in result.estimates.items():
        table.add_row(name, f"{estimate.mean:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")
    return table
