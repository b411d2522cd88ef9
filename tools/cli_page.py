"""``python -m tools.cli_page``: write docs/cli.md from the commands' help, and docs/dataflow.svg.

docs/dataflow.svg is the dataflow of the quickstart.
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

`titanrl COMMAND --help` prints the same text in the terminal. Exit status 2 means a user error, whose message
states the remedy; exit status 1 means that a run failed."""


def cli_page() -> str:
    """Return the page: all commands with their arguments and options."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return "\n\n".join([PAGE, *_commands(root, "titanrl")]) + "\n"


def _commands(group: TyperGroup, prefix: str) -> list[str]:
    blocks = []
    for name, command in group.commands.items():
        usage = f"{prefix} {name}"
        if isinstance(command, TyperGroup):
            blocks += _commands(command, usage)
            continue
        parameters = [each for each in command.params if each.name != "help"]
        arguments = [argument(each) for each in parameters if isinstance(each, TyperArgument)]
        blocks.append(f"## `{usage}`")
        blocks.append(" ".join((command.help or "").split()))
        blocks.append(f"```text\n{' '.join([usage, *arguments, '[OPTIONS]'])}\n```")
        rows = [_row(each) for each in parameters]
        if rows:
            blocks.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    return blocks


def argument(parameter: Any) -> str:
    """Return an argument as in a usage line: ``FILES...``, in brackets if it is optional."""
    name = (parameter.name or "").upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, TyperArgument):
        names = f"`{(parameter.name or '').upper()}`"
    default = parameter.default
    default_text = "" if default in (None, False, ...) or callable(default) else f"`{default}`"
    if parameter.required:
        default_text = "required"
    meaning = " ".join(str(getattr(parameter, "help", "") or "").split())
    return f"| {names} | {default_text} | {meaning} |".replace("  ", " ")


def dataflow_svg() -> str:
    """Return a diagram of the dataflow of experiments/quickstart.toml."""
    from titanrl.config import load
    from titanrl.report.dataflow_plot import dataflow_plot

    return f"{dataflow_plot(load(ROOT / 'experiments' / 'quickstart.toml').dataflow())}\n"


def write(root: Path) -> list[Path]:
    """Write both files to a clone and return their paths."""
    texts = {root / "docs" / "cli.md": cli_page(), root / "docs" / "dataflow.svg": dataflow_svg()}
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    return list(texts)


if __name__ == "__main__":
    lazy_torch()
    for path in write(ROOT):
        print(path.relative_to(ROOT))
