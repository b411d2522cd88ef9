"""What of the documentation the command line and a run know: ``python -m tools.cli_page`` writes it.

docs/cli.md from the commands' own help, and docs/dataflow.svg, the dataflow of the quickstart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperArgument, TyperGroup

from titanrl.cli.app import app
from titanrl.runtime.lazy import lazy_torch

__all__ = ["cli_page", "dataflow_svg", "write"]

ROOT = Path(__file__).parents[1]
PAGE = """<!-- Written by `make docs` from the commands of titanrl/cli. Edit those, not this page. -->

# Commands

`titanrl COMMAND --help` says the same in the terminal. A mistake of the user's ends a command with status 2
and says what to do; what goes wrong in a run, with status 1."""


def cli_page() -> str:
    """Returns the page: each command, its arguments and options."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return "\n\n".join([PAGE, *_commands(root, "titanrl")]) + "\n"


def _commands(group: TyperGroup, prefix: str) -> list[str]:
    blocks = []
    for name, command in group.commands.items():
        called = f"{prefix} {name}"
        if isinstance(command, TyperGroup):
            blocks += _commands(command, called)
            continue
        parameters = [each for each in command.params if each.name != "help"]
        arguments = [argument(each) for each in parameters if isinstance(each, TyperArgument)]
        blocks.append(f"## `{called}`")
        blocks.append(" ".join((command.help or "").split()))
        blocks.append(f"```text\n{' '.join([called, *arguments, '[OPTIONS]'])}\n```")
        rows = [_row(each) for each in parameters]
        if rows:
            blocks.append("\n".join(["| | default | |", "|---|---|---|", *rows]))
    return blocks


def argument(parameter: Any) -> str:
    """Returns an argument as a usage line shows it: ``FILES...``, in brackets if it may be left out."""
    name = (parameter.name or "").upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, TyperArgument):
        names = f"`{(parameter.name or '').upper()}`"
    default = parameter.default
    shown = "" if default in (None, False, ...) or callable(default) else f"`{default}`"
    if parameter.required:
        shown = "required"
    told = " ".join(str(getattr(parameter, "help", "") or "").split())
    return f"| {names} | {shown} | {told} |".replace("  ", " ")


def dataflow_svg() -> str:
    """Returns the dataflow of a step of experiments/quickstart.toml as a picture."""
    from titanrl.config import load
    from titanrl.report.dataflow_plot import dataflow_plot

    return f"{dataflow_plot(load(ROOT / 'experiments' / 'quickstart.toml').dataflow())}\n"


def write(root: Path) -> list[Path]:
    """Writes both into a clone and returns their paths."""
    made = {root / "docs" / "cli.md": cli_page(), root / "docs" / "dataflow.svg": dataflow_svg()}
    for path, text in made.items():
        path.write_text(text, "utf-8")
    return list(made)


if __name__ == "__main__":
    lazy_torch()
    for path in write(ROOT):
        print(path.relative_to(ROOT))
