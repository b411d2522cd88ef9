"""``titanrl check`` and ``titanrl show``: validate experiment files and print their resolved form."""

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
from titanrl.cli.recipe import default_folder
from titanrl.cli.scan import scan_data
from titanrl.cli.train import SET
from titanrl.config import dumps, load
from titanrl.errors import ConfigError
from titanrl.preflight.memory import estimate_rank_memory
from titanrl.preflight.verify import load_checked, notices
from titanrl.protocols.batch import STAGES, key_name
from titanrl.recipes.checks import check_recipe
from titanrl.recipes.settings import is_recipe, load_recipe
from titanrl.runtime.lazy import lazy_torch

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Parallelism
    from titanrl.config.tables import Loop, Reward
    from titanrl.models.memory import MemoryEstimate

__all__ = ["check", "show"]


def check(
    files: Annotated[
        list[Path], typer.Argument(help="Experiment, ablation or recipe files (TOML).", show_default=False)
    ],
    overrides: SET = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Also check that this number of processes fits.")
    ] = None,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also read all examples and prompts and report invalid and overlong ones, a histogram of "
            "row lengths, unique held-out examples, and held-out examples that occur in the training data.",
        ),
    ] = False,
) -> None:
    """Report all errors of experiment, ablation and recipe files without loading a model."""
    lazy_torch()
    has_failed = False
    for file in files:
        memory_text, reward_text, warnings = "", "", list[str]()
        try:
            kind = "ablation" if is_ablation(file) else "recipe" if is_recipe(file) else ""
            if kind and data:
                raise ConfigError(
                    f"{file}: --data reads experiments, not {kind}s; name its experiment files."
                )
            if kind == "ablation":
                plan(file, overrides or [], nproc)
            elif kind == "recipe":
                recipe = load_recipe(file, default_folder(file), overrides or [])
                check_recipe(recipe, default_folder(file), nproc)
            else:
                experiment = load_checked(file, overrides or [], nproc)
                warnings = notices(experiment.reward, experiment.environment)
                ranks = nproc or experiment.parallelism.least_ranks
                memory_text = _memory_text(estimate_rank_memory(experiment, ranks), ranks)
                reward_text = _reward_text(experiment.reward, experiment.loop, experiment.parallelism, ranks)
                if data and (num_bad := scan_data(experiment, Console())):
                    noun, pronoun = ("example", "it") if num_bad == 1 else ("examples", "them")
                    raise ConfigError(f"{num_bad} bad {noun}; fix or remove {pronoun}.", file=str(file))
        except ConfigError as error:
            has_failed = True
            typer.secho(str(error), fg="red", err=True)
        else:
            typer.secho(f"{file}: OK", fg="green")
            for text in warnings:
                typer.secho(f"  warning: {text}", fg="yellow", err=True)
            for text in filter(None, (memory_text, reward_text)):
                typer.echo(text)
    if has_failed:
        raise typer.Exit(2)


def _reward_text(rewards: Sequence[Reward], loop: Loop, mesh: Parallelism, world_size: int) -> str:
    """Return the longest time that rewards may take in a step, if every response takes its timeout."""
    if not rewards:
        return ""
    ranks = world_size // (mesh.tensor_parallel_degree * mesh.pipeline_parallel_degree)
    num_rows = -(-loop.prompts_per_step // ranks) * loop.samples_per_prompt
    limits = {each.label: each.max_seconds(num_rows) for each in rewards}
    parts = (f"{label} {'no limit' if each is None else f'{each:g} s'}" for label, each in limits.items())
    return f"  rewards of a step ({num_rows} responses a rank) take at most: {', '.join(parts)}"


def _memory_text(estimates: Sequence[MemoryEstimate], world_size: int) -> str:
    """Return the memory of the largest rank as text: the sum, and its parts in descending order."""
    rank = "the process" if world_size == 1 else f"the largest of {world_size} ranks"
    device = [each for each in estimates if not each.is_on_host]
    host = [each for each in estimates if each.is_on_host]
    text = f"  {rank} needs about {_sum(device)}, sampler excluded: {_parts(device)}"
    return text + (f"; offloaded to CPU memory, {_sum(host)}: {_parts(host)}" if host else "")


def _sum(estimates: Sequence[MemoryEstimate]) -> str:
    return _size(sum(each.size for each in estimates))


def _parts(estimates: Sequence[MemoryEstimate]) -> str:
    descending = sorted(estimates, key=lambda each: -each.size)
    return ", ".join(f"{each.name} {_size(each.size)}" for each in descending)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 / 10 else f"{num_bytes / 2**20:.1f} MiB"


def show(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (TOML).", show_default=False)] = None,
    overrides: SET = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of experiment files.")
    ] = False,
) -> None:
    """Print the fully resolved configuration and the batch keys that each stage reads and writes."""
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
    table = Table("stage", "node", "reads", "writes", title="Dataflow of a step")
    flow = experiment.dataflow()
    for stage in STAGES:
        for node in (each for each in flow if each.stage == stage):
            reads, writes = (", ".join(map(key_name, keys)) for keys in (node.reads, node.writes))
            table.add_row(stage, node.name, reads, writes)
        table.add_section()
    console.print(table)
    keys, on_policy = experiment.scored_keys()
    passes = ", ".join(sorted(keys)) or "none"
    console.print(
        f"Forward passes at stage score: {passes}." + (" The update is on-policy." if on_policy else "")
    )
