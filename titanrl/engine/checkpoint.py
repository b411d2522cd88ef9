"""Distributed checkpoints through TorchTitan's CheckpointManager, with whatever else a run must remember.

A checkpoint counts once its ``.metadata`` exists, which is renamed into place after every rank's data is on
disk: a run killed at any moment finds its previous checkpoint whole.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.checkpointer.base import ModelWrapper

from titanrl.config.engine_tables import Checkpoint
from titanrl.engine.learner import Learner
from titanrl.errors import ConfigError, TrainingError
from titanrl.protocols import Stateful

__all__ = ["Checkpoints", "has_checkpoint"]

FULL = 64 * 2**20
"""Free bytes below which a disk counts as full."""
CRITIC = "critic"
"""Beginning of the names under which a checkpoint holds the critic; the policy's have none."""


class Checkpoints:
    """Saves and restores models, optimizers, schedules and the loop's own state."""

    def __init__(
        self,
        table: Checkpoint,
        folder: Path,
        policy: Learner,
        critic: Learner | None,
        state: Stateful | None,
    ) -> None:
        """Args:
        folder: holds a folder ``step-<n>`` for each checkpoint. state: saved for each rank by itself.
        """
        self._interval, self._folder = table.interval, folder
        self._written = 0
        states: dict[str, Any] = {"loop": RankState(state)}
        if critic is not None:
            states |= {
                CRITIC: ModelWrapper(critic.role.model.parts),
                f"{CRITIC}_optimizer": critic.optimizers,
                f"{CRITIC}_lr_scheduler": critic.schedule.schedulers,
            }
        self._manager = CheckpointManager(
            CheckpointManager.Config(
                enable=table.enable,
                folder=folder.name,
                # Whether a checkpoint is due is decided here, as the last step must be a full one too.
                interval=1,
                keep_latest_k=table.keep_latest_k,
                async_mode=table.async_mode,
                initial_load_model_only=False,
            ),
            dataloader=None,
            model_parts=policy.role.model.parts,
            optimizers=policy.optimizers,
            lr_schedulers=policy.schedule.schedulers,
            states=states,
            sd_adapter=None,
            base_folder=str(folder.parent),
        )

    def save(self, step: int, *, last: bool = False) -> bool:
        """Writes a checkpoint if one is due after ``step`` finished steps; returns whether. A collective.

        Raises:
            TrainingError: the disk is full, be it for the one before, which was still being written.
        """
        if not self._manager.enable or not (last or step % self._interval == 0):
            return False
        self._wait()
        if dist.get_rank() == 0:
            # A repeated step is written over its old files; without its mark a half-written mix is not taken
            # for whole.
            (self._folder / f"step-{step}" / ".metadata").unlink(missing_ok=True)
        dist.barrier()
        with self._full_disk_named(step):
            saved = bool(self._manager.save(step))
            # A copy that is made beside training would hold some weights of the next step.
            self._manager.maybe_wait_for_staging()
        self._written = step
        return saved

    def load(self, step: int = -1) -> bool:
        """Restores the checkpoint of ``step``, or the newest whole one; returns whether there was one."""
        return bool(self._manager.load(step))

    def close(self) -> None:
        """Waits for a checkpoint that is being written.

        Raises:
            TrainingError: the disk is full.
        """
        self._wait()
        self._manager.close()

    def _wait(self) -> None:
        with self._full_disk_named(self._written):
            self._manager.maybe_wait_for_saving()

    @contextmanager
    def _full_disk_named(self, step: int) -> Iterator[None]:
        try:
            yield
        except (CheckpointException, OSError) as error:
            if (free := shutil.disk_usage(self._folder).free) > FULL:
                raise
            raise TrainingError(
                f"the disk of {str(self._folder)!r} is full, {free >> 20} MiB are free: the checkpoint of "
                f"step {step} does not fit. Free some space, or keep fewer with [checkpoint] keep_latest_k, "
                "and go on from the newest whole checkpoint with --resume."
            ) from error


class RankState(Stateful):
    """One object of each rank as bytes.

    Its structure may change from step to step, which DCP's keys may not.
    """

    def __init__(self, state: Stateful | None) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        torch.save({} if self._state is None else self._state.state_dict(), buffer)
        return {f"rank-{dist.get_rank()}": buffer.getvalue(), "world_size": dist.get_world_size()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["world_size"] != dist.get_world_size():
            raise ConfigError(
                f"the checkpoint was written by {state_dict['world_size']} processes, got "
                f"{dist.get_world_size()}; resume with as many."
            )
        if self._state is not None:
            data = io.BytesIO(state_dict[f"rank-{dist.get_rank()}"])
            self._state.load_state_dict(torch.load(data, weights_only=True))


def has_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` holds a whole checkpoint."""
    return any((path / ".metadata").is_file() for path in folder.glob("step-*"))
