"""The weights alone out of a checkpoint, whatever mesh wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from titanrl.engine.checkpoint import CRITIC

__all__ = ["load_weights", "newest_checkpoint"]


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the newest whole checkpoint in a run's folder of checkpoints."""
    whole = [path for path in folder.glob("step-*") if (path / ".metadata").is_file()]
    return max(whole, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def load_weights(modules: Iterable[torch.nn.Module], checkpoint: Path, *, critic: bool = False) -> None:
    """Fills the modules with a checkpoint's weights, and nothing else with anything else. A collective.

    Args:
        critic: whether those of the critic are meant instead of the policy's.
    """
    for module in modules:
        state = module.state_dict()
        load({CRITIC: state} if critic else state, checkpoint_id=str(checkpoint))
        module.load_state_dict(state)
