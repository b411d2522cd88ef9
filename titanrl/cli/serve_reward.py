"""``titanrl serve-reward``: serve a reward model to runs on other machines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from titanrl.cli.target import STEP

__all__ = ["serve_reward"]


class Dtype(StrEnum):
    """Precision of the server's computation."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def serve_reward(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="Run that trained a reward model, or a reward model's folder.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8100,
    step: STEP = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of weights and computation.")] = Dtype.float32,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens scored at a time.")] = 8192,
) -> None:
    """Serve a reward model over HTTP, for [[reward]] name = "reward_model" with a url."""
    from titanrl.engine.export import export_run
    from titanrl.report.folder import RunFolder
    from titanrl.serve.reward_model import serve

    with TemporaryDirectory() as temporary:
        folder = source
        if RunFolder(source).config.is_file():
            folder = export_run(source, Path(temporary) / "model", step=step, dtype=dtype.value)
        typer.echo(f"serving {source} at http://{host}:{port}")
        serve(str(folder), host=host, port=port, dtype=dtype.value, batch_tokens=batch_tokens)
