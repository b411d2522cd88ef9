"""``titanrl presets``: list the shipped presets, or print one."""

from __future__ import annotations

from typing import Annotated

import typer

from titanrl.config.presets import PREFIX, locate, preset_names, summary

__all__ = ["presets"]


def presets(
    name: Annotated[
        str | None, typer.Argument(help="Preset to print, e.g. algorithms/grpo.toml.", show_default=False)
    ] = None,
) -> None:
    """List the shipped presets, or print one. A file extends one by base = "titanrl:algorithms/grpo.toml"."""
    if name is not None:
        typer.echo(locate(PREFIX + name.removeprefix(PREFIX)).read_text("utf-8"), nl=False)
        return
    names = preset_names()
    width = max(map(len, names))
    for each in names:
        typer.echo(f"{each:{width}}  {summary(each)}")
