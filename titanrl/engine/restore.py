"""Loads only the weights of a checkpoint, whatever mesh wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from titanrl.engine.checkpoint import CRITIC

__all__ = ["load_weights", "newest_checkpoint"]


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint in a run's folder of checkpoints; None: there is none."""
    complete = [path for path in folder.glob("step-*") if (path / ".metadata").is_file()]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def load_weights(modules: Iterable[torch.nn.Module], checkpoint: Path, *, critic: bool = False) -> None:
    """Loads a checkpoint's weights into the modules, without optimizers or other state; a collective.

    Args:
        modules: parts of the policy or the critic.
        checkpoint: its folder.
        critic: whether to load the critic's weights instead of the policy's.
    """
    for module in modules:
        state = module.state_dict()
        load({CRITIC: state} if critic else state, checkpoint_id=str(checkpoint))
        module.load_state_dict(state)
