"""``titanrl model get``, ``titanrl model import`` and ``titanrl export``: read and write model folders."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from titanrl.cli.target import STEP

__all__ = ["export", "models"]


class Dtype(StrEnum):
    """Precisions of weights in a model folder."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


models = typer.Typer(help="Create Hugging Face model folders.", no_args_is_help=True)

OUTPUT = Annotated[
    Path | None, typer.Option("--output", help="New folder. Default: models/NAME.", show_default=False)
]


@models.command("get")
def get(
    name: Annotated[
        str, typer.Argument(help="Name in the catalogue, e.g. smollm2-135m.", show_default=False)
    ],
    output: OUTPUT = None,
) -> None:
    """Fetch a model that needs neither a hub nor an account."""
    from titanrl.models import get as fetch

    fetch(name, output, log=typer.echo)


@models.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="Folder, hub id or GGUF file.", show_default=False)],
    output: OUTPUT = None,
) -> None:
    """Convert a Hugging Face folder, a hub id or a GGUF file to a model folder."""
    from titanrl.models import import_model

    import_model(source, output, log=typer.echo)


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", help="New folder.", show_default=False)],
    critic: Annotated[
        bool, typer.Option("--critic", help="Export the critic instead of the policy.")
    ] = False,
    step: STEP = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            "--dtype",
            help="Precision of the written weights. Default: that of the model which the run started from; "
            "float32 keeps the master weights.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run's weights as a Hugging Face folder that transformers loads."""
    from titanrl.engine.export import export_run
    from titanrl.models.stored import source_dtype

    chosen = None if dtype is None else dtype.value
    folder = export_run(run, output, critic=critic, step=step, dtype=chosen)
    typer.echo(f"wrote {folder} in {source_dtype(folder)}")
