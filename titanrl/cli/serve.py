"""``titanrl serve``: a policy over HTTP, its best of several answers if asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from titanrl.cli.target import MODEL, TARGET, target_of
from titanrl.cli.train import SET
from titanrl.config import load
from titanrl.config.engine_tables import Parallelism
from titanrl.errors import ConfigError
from titanrl.preflight.verify import preflight

__all__ = ["serve"]

READ = ("model", "training", "sampler", "reward", "parallelism")
"""Tables that answering needs; what is wrong with others, such as data that is not here, is no obstacle."""


def serve(
    target: TARGET,
    model: MODEL = None,
    best_of: Annotated[
        int | None,
        typer.Option(
            "--best-of",
            min=1,
            max=1024,
            help="Answers sampled of which the best is returned, where a request does not say.",
            show_default=False,
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            help="Label of the [[reward]] that chooses; omitted: [evaluation] best_of_reward, or the "
            "weighted sum.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one, which is told.")
    ] = 8000,
    overrides: SET = None,
) -> None:
    """Serve a model, or a run's newest checkpoint, over OpenAI-compatible HTTP; its best of N answers too."""
    served = target_of(target, model, overrides)
    # One process answers, however many trained.
    experiment = replace(load(served.file, served.overrides), parallelism=Parallelism())
    problems = [each for each in preflight(experiment, 1) if each.where.partition(".")[0] in READ]
    if problems:
        raise ConfigError(problems, file=str(served.file))
    from titanrl.serve.model import serve_model

    serve_model(experiment, served.run, best_of=best_of, reward=reward, host=host, port=port, say=typer.echo)
