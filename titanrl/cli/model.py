"""``titanrl model get|import`` and ``titanrl export``: weights in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export", "models"]

models = typer.Typer(help="Get models as Hugging Face folders.", no_args_is_help=True)

TO = Annotated[Path | None, typer.Option("--to", help="Folder; models/NAME if omitted.", show_default=False)]


@models.command("get")
def get(
    name: Annotated[
        str, typer.Argument(help="Name in the catalogue, e.g. smollm2-135m.", show_default=False)
    ],
    to: TO = None,
) -> None:
    """Fetch a model that needs no hub and no account."""
    from titanrl.models import get as fetch

    fetch(name, to, log=typer.echo)


@models.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="Folder, hub id or GGUF file.", show_default=False)],
    to: TO = None,
) -> None:
    """Make a model folder of a Hugging Face folder, a hub id or a GGUF file."""
    from titanrl.models import import_model

    import_model(source, to, log=typer.echo)


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="Folder to make.", show_default=False)],
    critic: Annotated[bool, typer.Option("--critic", help="The critic instead of the policy.")] = False,
) -> None:
    """Write a run's newest weights as a Hugging Face folder that transformers loads."""
    from titanrl.engine.export import export_run

    typer.echo(f"{export_run(run, to, critic=critic)} is ready.")
