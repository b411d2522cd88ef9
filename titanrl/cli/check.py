"""``titanrl check`` and ``titanrl show``: what is wrong with experiment files, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from titanrl.ablation.plan import is_ablation, plan
from titanrl.cli.pipeline import folder_of
from titanrl.cli.scan import scan_data
from titanrl.cli.train import SET
from titanrl.config import dumps, load
from titanrl.errors import ConfigError
from titanrl.preflight.memory import estimate_rank_memory
from titanrl.preflight.verify import load_checked
from titanrl.protocols.batch import STAGES, key_name
from titanrl.recipes.checks import check_pipeline
from titanrl.recipes.settings import is_pipeline, load_pipeline
from titanrl.runtime.lazy import lazy_torch

if TYPE_CHECKING:
    from titanrl.models.memory import MemoryEstimate

__all__ = ["check", "show"]


def check(
    files: Annotated[
        list[Path], typer.Argument(help="Experiment, ablation or pipeline files (TOML).", show_default=False)
    ],
    overrides: SET = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Also check that so many processes fit.")] = None,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also read all examples: bad and long rows, a histogram, how many of the held-out ones are "
            "different, and whether training has them too.",
        ),
    ] = False,
) -> None:
    """Find every mistake of experiment, ablation and pipeline files without loading a model."""
    lazy_torch()
    failed = False
    for file in files:
        needed = ""
        try:
            kind = "ablation" if is_ablation(file) else "pipeline" if is_pipeline(file) else ""
            if kind and data:
                raise ConfigError(f"{file}: --data reads experiments, not {kind}s; name those that it uses.")
            if kind == "ablation":
                plan(file, overrides or [], nproc)
            elif kind == "pipeline":
                stages = load_pipeline(file, folder_of(file), overrides or [])
                check_pipeline(stages, folder_of(file), nproc)
            else:
                experiment = load_checked(file, overrides or [], nproc)
                ranks = nproc or experiment.parallelism.least_ranks
                needed = _memory(estimate_rank_memory(experiment, ranks), ranks)
                if data and (bad := scan_data(experiment, Console())):
                    raise ConfigError(f"{bad} bad examples; mend or remove them.", file=str(file))
        except ConfigError as error:
            failed = True
            typer.secho(str(error), fg="red", err=True)
        else:
            typer.secho(f"{file}: right", fg="green")
            if needed:
                typer.echo(needed)
    if failed:
        raise typer.Exit(2)


def _memory(needs: Sequence[MemoryEstimate], world_size: int) -> str:
    """Returns what a rank needs in words: the sum, and the parts from the largest down."""
    rank = "the process" if world_size == 1 else f"the fullest of {world_size} ranks"
    device = [need for need in needs if not need.is_on_host]
    host = [need for need in needs if need.is_on_host]
    text = f"  {rank} needs about {_sum(device)}, without the sampler: {_parts(device)}"
    return text + (f"; offloaded to CPU memory, {_sum(host)}: {_parts(host)}" if host else "")


def _sum(needs: Sequence[MemoryEstimate]) -> str:
    return _size(sum(need.size for need in needs))


def _parts(needs: Sequence[MemoryEstimate]) -> str:
    return ", ".join(f"{need.name} {_size(need.size)}" for need in sorted(needs, key=lambda each: -each.size))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def show(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (TOML).", show_default=False)] = None,
    overrides: SET = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of experiment files.")
    ] = False,
) -> None:
    """Print the resolved file, and which stage reads and writes which keys of the batch."""
    lazy_torch()
    if schema:
        from titanrl.config.json_schema import file_schema

        typer.echo(json.dumps(file_schema(), indent=2))
        return
    if file is None:
        raise ConfigError("titanrl show needs an experiment file, or --schema.")
    experiment = load(file, overrides or [])
    console = Console()
    if console.is_terminal:
        console.print(Syntax(dumps(experiment), "toml", background_color="default"))
    else:
        typer.echo(dumps(experiment))
    table = Table("stage", "actor", "reads", "writes", title="Dataflow of a step")
    flow = experiment.dataflow()
    for stage in STAGES:
        for actor in (each for each in flow if each.stage == stage):
            reads, writes = (", ".join(map(key_name, keys)) for keys in (actor.reads, actor.writes))
            table.add_row(stage, actor.name, reads, writes)
        table.add_section()
    console.print(table)
    keys, on_policy = experiment.scored_keys()
    passes = ", ".join(sorted(keys)) or "none"
    console.print(f"Scoring passes of models: {passes}." + (" The update is on-policy." if on_policy else ""))
