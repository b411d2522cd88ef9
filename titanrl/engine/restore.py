"""Chooses a whole checkpoint of a run, and loads only its weights, whatever mesh wrote it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from titanrl.engine import best
from titanrl.engine.checkpoint_reader import load_checkpoint, read_metadata
from titanrl.engine.collectives import broadcast_object
from titanrl.engine.manifest import (
    ManifestError,
    checkpoint_step,
    file_problem,
    is_complete,
    list_steps,
    read_manifest,
)
from titanrl.errors import ConfigError

__all__ = ["choose_checkpoint", "has_checkpoint", "load_weights", "newest_whole", "parse_step", "problem_of"]

logger = logging.getLogger(__name__)

CRITIC = "critic"
"""Prefix of the critic's names in a checkpoint; the policy's names have no prefix."""
BEST = "best"


def has_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` holds a complete checkpoint; its files are not verified."""
    return any(is_complete(path) for path in list_steps(folder).values())


def parse_step(text: str) -> int | None:
    """Returns the step that an option names; None: the best one.

    Raises:
        ConfigError: neither a number nor "best".
    """
    if text == BEST:
        return None
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"--step must be the number of a checkpoint or {BEST!r}, got {text!r}.")
    return int(text)


def newest_whole(folder: Path) -> Path | None:
    """Returns what ``choose_checkpoint`` chooses, verified by this rank alone; says nothing.

    Raises:
        ConfigError: every complete checkpoint is damaged.
    """
    problems = {}
    for path in list_steps(folder).values():
        if not (problem := problem_of(path, shared=False)):
            return path
        if is_complete(path):
            problems[path.name] = problem
    if problems:
        raise _all_damaged(folder, problems)
    return None


def choose_checkpoint(folder: Path, step: str | int | None = None) -> Path | None:
    """Returns a checkpoint whose files equal its manifest; a collective of all ranks, which share the work.

    Checkpoints that are damaged or incomplete are named and skipped. Every command loads checkpoints
    through this function.

    Args:
        folder: a run's folder of checkpoints.
        step: of the checkpoint, or "best"; None: the newest whole one.

    Returns:
        Its folder; None: there is no complete checkpoint.

    Raises:
        ConfigError: the chosen checkpoint is missing or damaged, or every complete one is damaged.
    """
    steps: dict[int, Path] = broadcast_object(list_steps(folder) if _rank() == 0 else {})
    if step is not None:
        return _chosen(folder, steps, step)
    _report_ignored(folder)
    problems, is_first = {}, True
    for path in steps.values():
        problem = problem_of(path)
        if not problem:
            if not is_first:
                _warn(f"{path} is used, the newest whole checkpoint.")
            return path
        is_first = False
        _warn(f"{path} is not used: {problem}.")
        if broadcast_object(is_complete(path)):
            problems[path.name] = problem
    if problems:
        raise _all_damaged(folder, problems)
    return None


def problem_of(checkpoint: Path, *, shared: bool = True) -> str:
    """Returns why a checkpoint cannot be used, naming the file, the same on every rank; "": it is whole.

    Args:
        checkpoint: its folder.
        shared: whether every rank compares some of the files with the manifest, a collective; otherwise this
            rank compares all of them.
    """
    problem, rank, world_size = "", *((_rank(), _world_size()) if shared else (0, 1))
    try:
        manifest = read_manifest(checkpoint)
    except ManifestError as error:
        problem = str(error)
    if problem := _first(problem, world_size):
        return problem
    names = list(manifest.files)[rank::world_size]
    if problem := _first(file_problem(checkpoint, manifest, names), world_size):
        return problem
    try:
        read_metadata(checkpoint)
    except ConfigError as error:
        problem = str(error).removeprefix(f"{checkpoint} is not loaded: ").rstrip(".")
    return _first(problem, world_size)


def load_weights(modules: Iterable[torch.nn.Module], checkpoint: Path, *, critic: bool = False) -> None:
    """Loads a checkpoint's weights into the modules, without optimizers or other state; a collective.

    Args:
        modules: parts of the policy or the critic.
        checkpoint: its folder.
        critic: whether to load the critic's weights instead of the policy's.

    Raises:
        ConfigError: the checkpoint is of another model, or damaged.
    """
    for module in modules:
        state = module.state_dict()
        load_checkpoint({CRITIC: state} if critic else state, checkpoint)
        module.load_state_dict(state)


def _chosen(folder: Path, steps: dict[int, Path], step: str | int) -> Path:
    number = parse_step(step) if isinstance(step, str) else step
    if number is None:
        record = best.read(folder)
        if record is None:
            raise ConfigError(
                f"{folder} records no best checkpoint; train with [checkpoint] keep_best, or choose one by "
                f"its number: --step {_numbers(steps)}."
            )
        number = record.step
    if number not in steps:
        raise ConfigError(f"{folder} has no checkpoint of step {number}; there are {_numbers(steps)}.")
    if problem := problem_of(steps[number]):
        whole = next((other for other in steps if other != number and not problem_of(steps[other])), None)
        remedy = "no other one is whole" if whole is None else f"choose --step {whole}, which is whole"
        raise ConfigError(f"{steps[number]} cannot be used: {problem}; {remedy}.")
    return steps[number]


def _numbers(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps))) or "none"


def _report_ignored(folder: Path) -> None:
    """Names the folders that look like checkpoints but are not."""
    names = sorted(path.name for path in folder.glob("step-*") if checkpoint_step(path) is None)
    if names:
        _warn(f"{folder} also holds {', '.join(names)}: ignored, no checkpoint has such a name.")


def _warn(text: str) -> None:
    if _rank() == 0:
        logger.warning(text)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _all_damaged(folder: Path, problems: Mapping[str, str]) -> ConfigError:
    named = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    return ConfigError(
        f"{folder} holds no whole checkpoint: {named}. Restore one from a copy, or start the run again under "
        "another name."
    )


def _first(problem: str, world_size: int) -> str:
    """Returns the first rank's problem that is not empty, on every rank."""
    if world_size == 1:
        return problem
    problems: list[str] = [""] * world_size
    dist.all_gather_object(problems, problem)
    return next(filter(None, problems), "")
