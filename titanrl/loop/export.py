"""A run's newest weights as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from titanrl.config.engine_tables import Parallelism
from titanrl.config.load import load
from titanrl.errors import ConfigError
from titanrl.models.folder import atomic_folder
from titanrl.report.folder import RunFolder

__all__ = ["export_run"]


def export_run(run: Path, to: Path) -> Path:
    """Writes the newest checkpoint of a run into a new folder that transformers loads, and returns it.

    One process does it, however many trained.

    Raises:
        ConfigError: no run, no checkpoint, or the folder exists.
    """
    from titanrl.engine import Engine, EngineConfig, start
    from titanrl.engine.restore import load_weights, newest_checkpoint

    folder = RunFolder(run)
    if not folder.config.is_file():
        raise ConfigError(f"{run} is no run folder: it has no {folder.config.name}.")
    checkpoint = newest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{run} holds no whole checkpoint; let it reach one, see [checkpoint] interval.")
    if to.exists():
        raise ConfigError(f"--to must name a new folder, got {str(to)!r}, which exists.")
    config = EngineConfig.of(load(folder.config))
    was_pipelined = config.parallelism.pipeline_parallel_degree > 1
    start()
    engine = Engine(replace(config, parallelism=Parallelism(), frozen={}))
    if was_pipelined and engine.is_tied:
        raise ConfigError(
            f"{run} trained head and embedding apart, as pipeline stages do, got a model that ties them; "
            'set "tie_word_embeddings": false in a copy of its config.json and train from that.'
        )
    load_weights(engine.modules, checkpoint)
    with atomic_folder(to) as partial:
        engine.export(partial)
    return to
