"""Distributed checkpoints through TorchTitan's CheckpointManager: models, optimizers and the run's state.

A checkpoint is complete once its ``.metadata`` exists, which is renamed into place after the data of every
rank is on disk: a run that is killed at any time still has its previous checkpoint.
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

FULL_DISK_BYTES = 64 * 2**20
"""Free space below which a disk counts as full."""
CRITIC = "critic"
"""Prefix of the critic's names in a checkpoint; the policy's names have no prefix."""


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
        """Builds the checkpoint manager.

        Args:
            table: [checkpoint].
            folder: holds a folder ``step-<n>`` for each checkpoint.
            policy: the trained policy.
            critic: the trained critic; None: there is none.
            state: further state, saved separately for each rank; None: there is none.
        """
        self._interval, self._folder = table.interval, folder
        self._written = 0
        states: dict[str, Any] = {"loop": RankState(state)}
        if critic is not None:
            states |= {
                CRITIC: ModelWrapper(critic.scoring_model.model.parts),
                f"{CRITIC}_optimizer": critic.optimizers,
                f"{CRITIC}_lr_scheduler": critic.schedule.schedulers,
            }
        self._manager = CheckpointManager(
            CheckpointManager.Config(
                enable=table.enable,
                folder=folder.name,
                # Decided in save() instead: the last step must write a full checkpoint too.
                interval=1,
                keep_latest_k=table.keep_latest_k,
                async_mode=table.async_mode,
                initial_load_model_only=False,
            ),
            dataloader=None,
            model_parts=policy.scoring_model.model.parts,
            optimizers=policy.optimizers,
            lr_schedulers=policy.schedule.schedulers,
            states=states,
            sd_adapter=None,
            base_folder=str(folder.parent),
        )

    def save(self, step: int, *, last: bool = False) -> bool:
        """Writes a checkpoint if one is due after ``step`` finished steps; a collective.

        Args:
            step: number of finished steps.
            last: whether to write one in any case.

        Returns:
            Whether a checkpoint was written.

        Raises:
            TrainingError: the disk is full, possibly while the previous checkpoint was being written.
        """
        if not self._manager.enable or not (last or step % self._interval == 0):
            return False
        self._wait()
        if dist.get_rank() == 0:
            # A repeated step overwrites its old files; without its .metadata a half-written mix does not
            # count as complete.
            (self._folder / f"step-{step}" / ".metadata").unlink(missing_ok=True)
        dist.barrier()
        with self._reporting_full_disk(step):
            saved = bool(self._manager.save(step))
            # Wait for the copy in memory: the next step would change weights that are not copied yet.
            self._manager.maybe_wait_for_staging()
        self._written = step
        return saved

    def load(self, step: int = -1) -> bool:
        """Restores the checkpoint of ``step``, or the newest complete one; returns whether there was one."""
        return bool(self._manager.load(step))

    def close(self) -> None:
        """Waits until the checkpoint that is being written is complete.

        Raises:
            TrainingError: the disk is full.
        """
        self._wait()
        self._manager.close()

    def _wait(self) -> None:
        with self._reporting_full_disk(self._written):
            self._manager.maybe_wait_for_saving()

    @contextmanager
    def _reporting_full_disk(self, step: int) -> Iterator[None]:
        try:
            yield
        except (CheckpointException, OSError) as error:
            if (free := shutil.disk_usage(self._folder).free) > FULL_DISK_BYTES:
                raise
            raise TrainingError(
                f"the disk of {str(self._folder)!r} is full, {free >> 20} MiB are free: the checkpoint of "
                f"step {step} does not fit. Free some space, or keep fewer with [checkpoint] keep_latest_k, "
                "and continue from the newest complete checkpoint with --resume."
            ) from error


class RankState(Stateful):
    """The state of one object on each rank as bytes.

    Its structure may change from step to step, unlike the keys of a distributed checkpoint.
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
                f"{dist.get_world_size()}; resume with the same number."
            )
        if self._state is not None:
            data = io.BytesIO(state_dict[f"rank-{dist.get_rank()}"])
            self._state.load_state_dict(torch.load(data, weights_only=True))


def has_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` holds a complete checkpoint."""
    return any((path / ".metadata").is_file() for path in folder.glob("step-*"))
