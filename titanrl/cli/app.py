"""The command line's root: how mistakes are shown, and which commands there are."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from titanrl import __version__
from titanrl.cli import (
    ablate,
    check,
    components,
    evaluate,
    model,
    pipeline,
    report,
    rft,
    serve,
    serve_reward,
    train,
    watch,
)
from titanrl.errors import ConfigError, TrainingError

__all__ = ["app", "main"]


class _Group(TyperGroup):
    """Shows the user's mistakes without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigError, TrainingError) as error:
            # Every rank finds the same mistake; one of them tells it.
            if os.environ.get("RANK", "0") == "0":
                typer.secho(str(error), fg="red", err=True)
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


app = typer.Typer(
    name="titanrl",
    cls=_Group,
    help="Train language models with reinforcement learning; an experiment is one TOML file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # as rich's own markup, [table] would vanish
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


app.command("train")(train.train)
app.command("check")(check.check)
app.command("show")(check.show)
app.command("components")(components.components)
app.add_typer(model.models, name="model")
app.command("export")(model.export)
app.command("rft")(rft.rft)
app.command("evaluate")(evaluate.evaluate)
app.command("pipeline")(pipeline.pipeline)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("ablate")(ablate.ablate)
app.command("serve")(serve.serve)
app.command("serve-reward")(serve_reward.serve_reward)


def main() -> None:
    """Runs the command line of this process."""
    # Libraries warn of their own affairs in C++, vLLM of binding memory; read when torch is first imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    app()
