"""Writes a run's policy or critic as a Hugging Face folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from titanrl.config.engine_tables import Parallelism
from titanrl.config.load import load
from titanrl.errors import ConfigError
from titanrl.models.chat_template import write_chat_template
from titanrl.models.folder import atomic_folder
from titanrl.models.stored import source_dtype
from titanrl.report.folder import RunFolder

__all__ = ["checkpoint_of", "export_run"]


def export_run(
    run: Path,
    output: Path,
    *,
    critic: bool = False,
    step: str | int | None = None,
    dtype: str | None = None,
) -> Path:
    """Writes a checkpoint of a run into a new folder that transformers loads, and returns it.

    The folder has the chat template of the experiment, or else the tokenizer's own, and the generation config
    of the model. Any number of processes may call it, however many trained; several work together.

    Args:
        run: the run's folder.
        output: the new folder.
        critic: whether to write the critic, a value model, instead of the policy.
        step: of the checkpoint, or "best"; None: the newest whole one.
        dtype: of the written weights, of ``DTYPES``; None: that of the model which the run started from.

    Raises:
        ConfigError: no run, no whole checkpoint, no critic, the folder exists, or weights that are too large
            for the dtype.
    """
    import torch

    from titanrl.engine import Engine, EngineConfig, init_distributed
    from titanrl.engine.restore import load_weights

    if not RunFolder(run).config.is_file():
        raise ConfigError(f"{run} is no run folder: it has no {RunFolder(run).config.name}.")
    if output.exists():
        raise ConfigError(f"--output must name a new folder, got {str(output)!r}, which exists.")
    experiment = load(RunFolder(run).config)
    config = EngineConfig.of(experiment)
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
    checkpoint = checkpoint_of(run, step)
    dtype = dtype or source_dtype(config.model)
    engine = Engine(replace(config, parallelism=Parallelism(), critic=None, frozen={}))
    load_weights(engine.modules, checkpoint, critic=critic)
    # Only the first rank writes.
    with atomic_folder(output) if engine.rank == 0 else nullcontext(output) as folder:
        engine.export(folder, dtype=getattr(torch, dtype))
        if engine.rank == 0 and experiment.model.chat_template is not None:
            write_chat_template(folder, experiment.model.chat_template)
    return output


def checkpoint_of(run: Path, step: str | int | None = None) -> Path:
    """Returns a whole checkpoint of a run folder; a collective where several processes run.

    Args:
        run: the run's folder.
        step: of the checkpoint, or "best"; None: the newest whole one.

    Raises:
        ConfigError: no run, no complete checkpoint, or the chosen one is missing or damaged.
    """
    from titanrl.engine.restore import choose_checkpoint

    folder = RunFolder(run)
    if not folder.config.is_file():
        raise ConfigError(f"{run} is no run folder: it has no {folder.config.name}.")
    checkpoint = choose_checkpoint(folder.checkpoints, step)
    if checkpoint is None:
        raise ConfigError(
            f"{run} holds no complete checkpoint; train on until one is written, see [checkpoint] interval."
        )
    return checkpoint
