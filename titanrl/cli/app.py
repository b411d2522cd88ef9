"""The root of the command line: its commands, and how errors are reported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
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
    presets,
    recipe,
    report,
    rft,
    serve,
    serve_reward,
    train,
    watch,
)
from titanrl.cli.ranks import OWN_PROCESS
from titanrl.errors import ConfigError, TrainingError
from titanrl.runtime import status

__all__ = ["app", "main"]

RENAMED_COMMANDS = {"pipeline": "recipe"}
RENAMED_OPTIONS = {"--to": "--output", "--against": "--baseline"}
ASSIGNMENT = re.compile(r"[\w-]+(\.[\w-]+)*=")


class _Group(TyperGroup):
    """A group that reports user errors without a traceback and names what replaced an old spelling."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigError, TrainingError) as error:
            # Every rank raises the same error; the first one reports it.
            if os.environ.get("RANK", "0") == "0":
                typer.secho(str(error), fg="red", err=True)
            status.update(end="reported")
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
        except Exception:
            status.update(end="reported")  # By its traceback.
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        _refuse_renamed(args)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_bare_assignments(command, rest)
        return name, command, rest


def _refuse_renamed(words: Sequence[str]) -> None:
    """Raise ConfigError if the command or one of its options has a new name."""
    if new := RENAMED_COMMANDS.get(words[0]):
        raise ConfigError(f"'titanrl {words[0]}' was renamed to 'titanrl {new}'.")
    for option in (word.partition("=")[0] for word in words[1:]):
        if option in RENAMED_OPTIONS:
            raise ConfigError(f"'{option}' was renamed to '{RENAMED_OPTIONS[option]}'.")


def _refuse_bare_assignments(command: Any, words: Sequence[str]) -> None:
    """Raise ConfigError if an override is given without ``--set``."""
    if not any("--set" in parameter.opts for parameter in command.params):
        return
    for word in _positional(command, words):
        if ASSIGNMENT.match(word) and not Path(word).exists():
            raise ConfigError(f"{word!r} is not an argument; write `--set {word}` to override a key.")


def _positional(command: Any, words: Sequence[str]) -> Iterator[str]:
    """Yield the words that are neither options nor values of options."""
    with_value = {name for each in command.params if not getattr(each, "is_flag", True) for name in each.opts}
    remaining = iter(words)
    for word in remaining:
        if word in with_value:
            next(remaining, None)
        elif not word.startswith("-"):
            yield word


app = typer.Typer(
    name="titanrl",
    cls=_Group,
    help="Post-train language models; an experiment is one TOML file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # rich's own markup would swallow [table]
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_requested: bool) -> None:
    if is_requested:
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
app.command("presets")(presets.presets)
app.add_typer(model.models, name="model")
app.command("export")(model.export)
app.command("rft")(rft.rft)
app.command("evaluate")(evaluate.evaluate)
app.command("recipe")(recipe.recipe)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("ablate")(ablate.ablate)
app.command("serve")(serve.serve)
app.command("serve-reward")(serve_reward.serve_reward)


def main() -> None:
    """Run the command line of this process."""
    # Libraries log warnings in C++ (vLLM: memory binding); the level is read when torch is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    OWN_PROCESS.set(True)
    app()
