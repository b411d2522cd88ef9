"""``titanrl ablate``: one base, what varies, several seeds; runs them and compares them."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from titanrl.ablation.plan import Plan, plan
from titanrl.cli.train import SET
from titanrl.errors import ConfigError
from titanrl.runtime.lazy import lazy_torch

__all__ = ["ablate"]


def ablate(
    files: Annotated[list[Path], typer.Argument(help="Ablation files (TOML).", show_default=False)],
    overrides: SET = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each on its share of the cores.")] = 1,
    nproc: Annotated[int, typer.Option(min=1, help="Processes of each run.")] = 1,
    emit_commands: Annotated[
        bool,
        typer.Option("--emit-commands", help="Print a command for each run to be made, and run nothing."),
    ] = False,
    emit_slurm: Annotated[
        bool,
        typer.Option("--emit-slurm", help="Print an sbatch script that makes the runs, and run nothing."),
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report what is finished, and run nothing.")
    ] = False,
) -> None:
    """Run every variant of an ablation with every seed, and compare them. Finished runs are not repeated."""
    if emit_commands and emit_slurm:
        raise ConfigError("--emit-commands and --emit-slurm must not be given together; choose one.")
    lazy_torch()
    plans, mistakes = [], []
    for file in files:
        try:
            plans.append(plan(file, overrides or [], nproc))
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    if emit_commands or emit_slurm:
        for each in plans:
            _emit(each, nproc, as_slurm=emit_slurm)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ends the runs too, as an interrupt does.
    failed = 0
    for each in plans:
        words = ["titanrl", "ablate", str(each.file), *(f"--set={text}" for text in overrides or [])]
        words += [f"--jobs={jobs}"] * (jobs > 1) + [f"--nproc={nproc}"] * (nproc > 1)
        failed += _run(each, 0 if report_only else jobs, nproc, shlex.join(words))
    if failed:
        raise typer.Exit(1)


def _emit(plan: Plan, nproc: int, *, as_slurm: bool) -> None:
    from titanrl.ablation.commands import command, slurm_array

    left = [run for run in plan.runs if run.state() != "finished"]
    if not left:
        typer.secho(f"{plan.file}: every run is finished; `titanrl ablate` reports them.", err=True)
    elif as_slurm:
        typer.echo(slurm_array(plan.name, left, nproc), nl=False)
    else:
        typer.echo("\n".join(command(run, nproc) for run in left))


def _run(plan: Plan, jobs: int, nproc: int, command: str) -> int:
    """Makes what is not finished, unless ``jobs`` is 0, and reports; returns how many runs failed."""
    from titanrl.ablation.curves import check_metric
    from titanrl.ablation.execute import devices, execute, slots
    from titanrl.ablation.files import write_files
    from titanrl.ablation.view import AblationView

    failed = []
    if jobs:
        shares = slots(jobs, nproc, _cores(), devices(os.environ))
        with AblationView(plan) as view:
            failed = execute(
                plan.runs, shares, nproc=nproc, view=view.show,
                finished=lambda run: check_metric(run.folder.path, plan.settings.metric),
            )  # fmt: skip
    for each in failed:
        typer.secho(f"{each.run.folder.path} failed: {each.reason}", fg="red", err=True)
    for path in write_files(plan, failed, command):
        typer.echo(f"{path} is ready.")
    return len(failed)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
