"""``titanrl ablate``: run the variants of one base experiment with several seeds and compare them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from titanrl.ablation.plan import Plan, plan
from titanrl.cli.ranks import stoppable
from titanrl.cli.train import SET
from titanrl.errors import ConfigError
from titanrl.runtime.lazy import lazy_torch
from titanrl.runtime.stop import StopRequested, abandonable

__all__ = ["ablate"]


def ablate(
    files: Annotated[list[Path], typer.Argument(help="Ablation files (TOML).", show_default=False)],
    overrides: SET = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of runs at a time, each on its share of the cores.")
    ] = 1,
    nproc: Annotated[int, typer.Option(min=1, help="Number of processes per run.")] = 1,
    emit_commands: Annotated[
        bool,
        typer.Option("--emit-commands", help="Print one command per remaining run instead of running."),
    ] = False,
    emit_slurm: Annotated[
        bool,
        typer.Option(
            "--emit-slurm", help="Print an sbatch script for the remaining runs instead of running."
        ),
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report the finished runs without running any.")
    ] = False,
) -> None:
    """Run every variant of an ablation with every seed and compare them. Finished runs are not repeated."""
    if emit_commands and emit_slurm:
        raise ConfigError("--emit-commands and --emit-slurm must not be given together; choose one.")
    lazy_torch()
    plans, errors = [], []
    for file in files:
        try:
            plans.append(plan(file, overrides or [], nproc))
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    if emit_commands or emit_slurm:
        for each in plans:
            _emit(each, nproc, as_slurm=emit_slurm)
        return
    from titanrl.ablation.execute import STOP_MARGIN_SECONDS

    num_failed = 0
    # The runs end within their own limit, and this process after them.
    seconds = max(run.experiment.run.stop_seconds for each in plans for run in each.runs)
    with stoppable(seconds + 2 * STOP_MARGIN_SECONDS), abandonable():
        for each in plans:
            words = ["titanrl", "ablate", str(each.file), *(f"--set={text}" for text in overrides or [])]
            words += [f"--jobs={jobs}"] * (jobs > 1) + [f"--nproc={nproc}"] * (nproc > 1)
            num_failed += _run(each, 0 if report_only else jobs, nproc, shlex.join(words))
    if num_failed:
        raise typer.Exit(1)


def _emit(plan: Plan, nproc: int, *, as_slurm: bool) -> None:
    from titanrl.ablation.commands import command, slurm_array

    remaining = [run for run in plan.runs if run.state() != "finished"]
    if not remaining:
        typer.secho(f"{plan.file}: all runs are finished; `titanrl ablate` reports them.", err=True)
    elif as_slurm:
        typer.echo(slurm_array(plan.name, remaining, nproc), nl=False)
    else:
        typer.echo("\n".join(command(run, nproc) for run in remaining))


def _run(plan: Plan, jobs: int, nproc: int, command: str) -> int:
    """Execute the unfinished runs, unless ``jobs`` is 0; write the report; return the number of failures."""
    from titanrl.ablation.curves import check_metric
    from titanrl.ablation.execute import execute, split_machine, visible_devices
    from titanrl.ablation.files import write_files
    from titanrl.ablation.view import AblationView

    failed = []
    if jobs:
        slots = split_machine(jobs, nproc, _cores(), visible_devices(os.environ))
        with AblationView(plan) as view:
            try:
                failed = execute(
                    plan.runs,
                    slots,
                    nproc=nproc,
                    view=view.show,
                    on_finished=lambda run: check_metric(run.folder.path, plan.settings.metric),
                )
            except StopRequested:
                states = [run.state() for run in plan.runs]
                raise StopRequested(
                    f"{states.count('finished')} of {len(states)} runs are finished, "
                    f"{states.count('unfinished')} are begun and go on at their newest checkpoints. "
                    f"Continue with: {command}"
                ) from None
    for each in failed:
        typer.secho(f"{each.run.folder.path} failed: {each.reason}", fg="red", err=True)
    for path in write_files(plan, failed, command):
        typer.echo(f"wrote {path}")
    return len(failed)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
