"""Writes a run's newest policy or critic as a Hugging Face folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from titanrl.config.engine_tables import Parallelism
from titanrl.config.load import load
from titanrl.errors import ConfigError
from titanrl.models.folder import atomic_folder
from titanrl.report.folder import RunFolder

__all__ = ["checkpoint_of", "export_run"]


def export_run(run: Path, output: Path, *, critic: bool = False) -> Path:
    """Writes the newest checkpoint of a run into a new folder that transformers loads, and returns it.

    Any number of processes may call it, however many trained; several work together.

    Args:
        run: the run's folder.
        output: the new folder.
        critic: whether to write the critic, a value model, instead of the policy.

    Raises:
        ConfigError: no run, no checkpoint, no critic, or the folder exists.
    """
    from titanrl.engine import Engine, EngineConfig, init_distributed
    from titanrl.engine.restore import load_weights

    checkpoint = checkpoint_of(run)
    if output.exists():
        raise ConfigError(f"--output must name a new folder, got {str(output)!r}, which exists.")
    config = EngineConfig.of(load(RunFolder(run).config))
    if critic:
        if config.critic is None:
            raise ConfigError(f"{run} trained no critic; drop --critic to write its policy.")
        if config.critic.path is None:
            raise ConfigError(
                f"{run} trained its critic as a head on the policy's backbone ([critic] shared = true), "
                "which is not a model of its own; drop --critic to write its policy."
            )
        config = replace(config, model=config.critic.path, head="value")
    init_distributed()
    engine = Engine(replace(config, parallelism=Parallelism(), critic=None, frozen={}))
    load_weights(engine.modules, checkpoint, critic=critic)
    # Only the first rank writes.
    with atomic_folder(output) if engine.rank == 0 else nullcontext(output) as folder:
        engine.export(folder)
    return output


def checkpoint_of(run: Path) -> Path:
    """Returns the newest complete checkpoint of a run folder.

    Raises:
        ConfigError: no run, or no checkpoint.
    """
    from titanrl.engine.restore import newest_checkpoint

    folder = RunFolder(run)
    if not folder.config.is_file():
        raise ConfigError(f"{run} is no run folder: it has no {folder.config.name}.")
    checkpoint = newest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise ConfigError(
            f"{run} holds no complete checkpoint; train on until one is written, see [checkpoint] interval."
        )
    return checkpoint
