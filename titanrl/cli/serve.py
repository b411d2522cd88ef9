"""``titanrl serve``: serve a policy over HTTP, optionally with best-of-N sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from titanrl.cli.target import MODEL, STEP, TARGET, resolve_target
from titanrl.cli.train import SET
from titanrl.config import load
from titanrl.config.engine_tables import Parallelism
from titanrl.errors import ConfigError
from titanrl.preflight.verify import preflight

__all__ = ["serve"]

CHECKED_TABLES = ("model", "training", "sampler", "reward", "parallelism")
"""Tables that serving needs. Problems of other tables, such as a missing data file, are ignored."""


def serve(
    target: TARGET,
    model: MODEL = None,
    best_of: Annotated[
        int | None,
        typer.Option(
            "--best-of",
            min=1,
            max=1024,
            help="Number of responses sampled per request, of which the best is returned, unless the request "
            "sets it.",
            show_default=False,
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            help="Label of the [[reward]] that selects the best response. Default: [evaluation] "
            "best_of_reward, or the weighted sum.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free port, which is printed.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="TITANRL_API_KEY",
            help="Key that requests must carry as `Authorization: Bearer KEY`. The environment variable does "
            "not show in the list of processes.",
            show_default=False,
        ),
    ] = None,
    step: STEP = None,
    overrides: SET = None,
) -> None:
    """Serve a model or a run's newest checkpoint over OpenAI-compatible HTTP, with best-of-N sampling."""
    if api_key == "":
        raise ConfigError("--api-key must not be empty; leave it out if no key is needed.")
    resolved = resolve_target(target, model, overrides, step)
    # A single process serves, whatever mesh the model was trained on.
    experiment = replace(load(resolved.file, resolved.overrides), parallelism=Parallelism())
    problems = [each for each in preflight(experiment, 1) if each.where.partition(".")[0] in CHECKED_TABLES]
    if problems:
        raise ConfigError(problems, file=str(resolved.file))
    from titanrl.serve.model import serve_model

    serve_model(
        experiment,
        resolved.run,
        step=resolved.step,
        best_of=best_of,
        reward=reward,
        host=host,
        port=port,
        api_key=api_key,
        say=typer.echo,
    )
