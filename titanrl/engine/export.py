"""A run's newest weights as a Hugging Face folder: the trained model's, or its critic's."""

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


def export_run(run: Path, to: Path, *, critic: bool = False) -> Path:
    """Writes the newest checkpoint of a run into a new folder that transformers loads, and returns it.

    One process is enough, however many trained; several do it together.

    Args:
        critic: whether to write the critic, a value model, instead of the policy.

    Raises:
        ConfigError: no run, no checkpoint, no critic, or the folder exists.
    """
    from titanrl.engine import Engine, EngineConfig, init_distributed
    from titanrl.engine.restore import load_weights

    checkpoint = checkpoint_of(run)
    if to.exists():
        raise ConfigError(f"--output must name a new folder, got {str(to)!r}, which exists.")
    config = EngineConfig.of(load(RunFolder(run).config))
    if critic:
        if config.critic is None:
            raise ConfigError(f"{run} trained no critic; drop --critic to write its policy.")
        if config.critic.path is None:
            raise ConfigError(
                f"{run} trained its critic as a head on the policy's body, [critic] shared = true: it is no "
                "model by itself; drop --critic to write its policy."
            )
        config = replace(config, model=config.critic.path, head="value")
    init_distributed()
    engine = Engine(replace(config, parallelism=Parallelism(), critic=None, frozen={}))
    load_weights(engine.modules, checkpoint, critic=critic)
    # Of several ranks the first one writes.
    with atomic_folder(to) if engine.rank == 0 else nullcontext(to) as folder:
        engine.export(folder)
    return to


def checkpoint_of(run: Path) -> Path:
    """Returns the newest whole checkpoint of a run folder.

    Raises:
        ConfigError: no run, or no checkpoint.
    """
    from titanrl.engine.restore import newest_checkpoint

    folder = RunFolder(run)
    if not folder.config.is_file():
        raise ConfigError(f"{run} is no run folder: it has no {folder.config.name}.")
    checkpoint = newest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{run} holds no whole checkpoint; let it reach one, see [checkpoint] interval.")
    return checkpoint
