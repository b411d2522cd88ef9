"""Distributed checkpoints through TorchTitan's CheckpointManager: models, optimizers and the run's state.

A checkpoint is complete once its manifest exists, which is written after the data of every rank is on disk:
a run that is killed at any time still has its previous checkpoint.
"""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.checkpointer.base import MODEL, ModelWrapper

from titanrl.config.engine_tables import Checkpoint
from titanrl.engine import best, rank_state
from titanrl.engine.best import Best
from titanrl.engine.checkpoint_reader import failure_of, load_checkpoint
from titanrl.engine.collectives import broadcast_object
from titanrl.engine.learner import Learner
from titanrl.engine.manifest import (
    METADATA,
    hash_files,
    is_complete,
    list_steps,
    read_manifest,
    remove_manifest,
    write_manifest,
)
from titanrl.engine.rank_state import RankState
from titanrl.engine.restore import CRITIC, choose_checkpoint
from titanrl.errors import ConfigError, TrainingError, did_you_mean
from titanrl.protocols import Stateful

__all__ = ["Checkpoints"]

T = TypeVar("T")

FULL_DISK_BYTES = 64 * 2**20
"""Free space below which a disk counts as full."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class Checkpoints:
    """Saves and restores models, optimizers, schedules and the loop's own state."""

    def __init__(
        self,
        table: Checkpoint,
        folder: Path,
        policy: Learner,
        critic: Learner | None,
        state: Stateful | None,
        mesh: Mapping[str, int],
    ) -> None:
        """Builds the checkpoint manager; a collective.

        Args:
            table: [checkpoint].
            folder: holds a folder ``step-<n>`` for each checkpoint.
            policy: the trained policy.
            critic: the trained critic; None: there is none.
            state: further state, saved separately for each rank; None: there is none.
            mesh: number of processes and parallelism degrees, by name.
        """
        self._table, self._folder, self._mesh = table, folder, mesh
        self._rank_state = RankState(state)
        states: dict[str, Any] = {"loop": self._rank_state}
        if critic is not None:
            states |= {
                CRITIC: ModelWrapper(critic.scoring_model.model.parts),
                f"{CRITIC}_optimizer": critic.optimizers,
                f"{CRITIC}_lr_scheduler": critic.schedule.schedulers,
            }
        self._manager = _Manager(
            _Manager.Config(
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
        # Of its own, because an asynchronous save ends in another thread; on the CPU, whatever the device.
        self._group = dist.new_group(backend="gloo") if table.enable and dist.get_world_size() > 1 else None
        self._finishing: Future[None] | None = None
        self._best = self._recorded_best() if table.enable and table.keep_best else None

    def save(
        self,
        step: int,
        *,
        last: bool = False,
        metrics: Mapping[str, float] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Writes a checkpoint if one is due after ``step`` finished steps; a collective.

        One is also due if ``metrics`` holds a new best value of [checkpoint] keep_best.

        Args:
            step: number of finished steps.
            last: whether to write one in any case.
            metrics: of the step; rank 0's count.
            before: called before a checkpoint is written; it may refuse by raising.

        Returns:
            Whether a checkpoint was written, or is being written in the background.

        Raises:
            TrainingError: the checkpoint cannot be written, or the previous one could not: a full disk.
            ConfigError: the validation did not measure [checkpoint] keep_best.
        """
        if not self._table.enable:
            return False
        record = self._new_best(step, metrics or {})
        if not (last or step % self._table.interval == 0 or record is not None):
            return False
        before()
        self._wait()
        if dist.get_rank() == 0:
            # A repeated step must not mix its files with those of before, or of another number of ranks.
            remove_manifest(self._folder / f"step-{step}")
            shutil.rmtree(self._folder / f"step-{step}", ignore_errors=True)
        dist.barrier()
        with self._reporting_failures(step):
            saved = bool(self._manager.save(step))
            # Wait for the copy in memory: the next step would change weights that are not copied yet.
            self._manager.maybe_wait_for_staging()
        if record is not None:
            self._best = record
        if self._manager.save_future is None:
            self._finish(step, None, record)
        else:
            # A thread waits for the disk and the other ranks while training continues.
            background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self._finishing = background.submit(self._finish, step, self._manager.save_future, record)
            background.shutdown(wait=False)
        return saved

    def load(self, step: int | str | None = None) -> bool:
        """Restores a checkpoint, written on this mesh or another one; a collective.

        Args:
            step: of the checkpoint, or "best"; None: the newest whole one.

        Returns:
            Whether there was a complete checkpoint.

        Raises:
            ConfigError: the checkpoint is damaged or of another model, or all are damaged.
        """
        if not self._table.enable:
            return False
        checkpoint = choose_checkpoint(self._folder, step)
        if checkpoint is None:
            return False
        manifest = read_manifest(checkpoint)
        with self._rank_state.reading(manifest.mesh["processes"]):
            self._manager.load(manifest.step)
        rank_state.report_other_mesh(manifest.mesh, self._mesh, self._rank_state.different_parts)
        return True

    def require_metric(self, metrics: Mapping[str, float]) -> None:
        """Refuses a validation that does not measure [checkpoint] keep_best.

        Args:
            metrics: of the validation, and further ones.

        Raises:
            ConfigError: they hold metrics of a validation, but not this one.
        """
        name = self._table.keep_best
        known = sorted(each for each in metrics if each.startswith("eval/"))
        if self._table.enable and name is not None and known and name not in metrics:
            nearest = did_you_mean(name, known) or ";"
            raise ConfigError(
                f"[checkpoint] keep_best {name!r} is not measured by the validation{nearest} it measures "
                f"{', '.join(known)}."
            )

    def close(self) -> None:
        """Waits until the checkpoint that is being written is complete.

        Raises:
            TrainingError: it cannot be written.
        """
        try:
            self._wait()
        finally:
            self._manager.close()

    def _wait(self) -> None:
        """Waits for the end of an asynchronous save, and raises what it raised."""
        if self._finishing is not None:
            finishing, self._finishing = self._finishing, None
            try:
                finishing.result()
            finally:
                self._manager.save_future = None

    def _finish(self, step: int, written: Future[Any] | None, record: Best | None) -> None:
        """Writes the manifest once every rank's files are on disk, and deletes stale checkpoints.

        Args:
            step: of the checkpoint.
            written: of an asynchronous save; None: the files are written.
            record: names this checkpoint as the best; None: it is not.
        """
        checkpoint = self._folder / f"step-{step}"
        with self._reporting_failures(step):
            if written is not None:
                written.result()
            rank, files, error = dist.get_rank(), {}, None
            try:
                # Each rank reads what it wrote, most of it still in memory.
                names = [path.name for path in checkpoint.glob(f"__{rank}_*")]
                files = hash_files(checkpoint, [*names, METADATA] if rank == 0 else names)
            except OSError as raised:
                error = raised
            every = self._gather((files, error))
            self._raise_first([raised for _, raised in every])
            if rank == 0:
                merged = {name: each for part, _ in every for name, each in part.items()}
                try:
                    write_manifest(checkpoint, step, self._mesh, merged)
                    if record is not None:
                        best.write(self._folder, record)
                except OSError as raised:
                    error = raised
            self._raise_first(self._gather(error))
            if rank == 0:
                self._delete_stale()

    def _delete_stale(self) -> None:
        """Deletes what is neither among the newest complete checkpoints nor the best one."""
        if self._table.keep_latest_k == 0:
            return
        steps = list_steps(self._folder)
        kept = [step for step, path in steps.items() if is_complete(path)][: self._table.keep_latest_k]
        for step, path in steps.items():
            if step < kept[0] and step not in kept and (self._best is None or step != self._best.step):
                remove_manifest(path)
                self._manager.purge_queue.put(str(path))

    def _new_best(self, step: int, metrics: Mapping[str, float]) -> Best | None:
        """Returns the record of a new best value, the same on every rank; None: there is none."""
        name = self._table.keep_best
        if name is None:
            return None
        self.require_metric(metrics)
        if self._best is not None and self._best.step == step:
            self._best = None  # A repeated step replaces its checkpoint.
        value = broadcast_object(metrics.get(name, math.nan))
        if not math.isfinite(value) or (self._best is not None and not self._best.is_beaten_by(value)):
            return None
        return Best(step, name, self._table.keep_best_mode, float(value))

    def _recorded_best(self) -> Best | None:
        """Returns the best checkpoint of the run so far, if it was chosen in the same way."""
        record = best.read(self._folder)
        if record is None or not is_complete(self._folder / f"step-{record.step}"):
            return None
        is_same = (record.metric, record.mode) == (self._table.keep_best, self._table.keep_best_mode)
        return record if is_same else None

    def _gather(self, value: T) -> list[T]:
        """Returns the value of every rank, in order."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _raise_first(self, errors: list[OSError | None]) -> None:
        for error in errors:
            if error is not None:
                raise error

    @contextmanager
    def _reporting_failures(self, step: int) -> Iterator[None]:
        """Raises a failed save as an error that names the folder, and removes its unfinished files."""
        try:
            yield
        except (CheckpointException, OSError, RuntimeError) as error:
            checkpoint, reason = self._folder / f"step-{step}", failure_of(error)
            free = shutil.disk_usage(self._folder).free
            if dist.get_rank() == 0:
                remove_manifest(checkpoint)
                shutil.rmtree(checkpoint, ignore_errors=True)
            whole = next((path for path in list_steps(self._folder).values() if is_complete(path)), None)
            where = "no other checkpoint is complete" if whole is None else f"{whole} is complete"
            if free <= FULL_DISK_BYTES or any(os_error in FULL for os_error in _error_numbers(error)):
                raise TrainingError(
                    f"the disk of {str(self._folder)!r} is full, {free >> 20} MiB are free: the checkpoint "
                    f"of step {step} does not fit and its unfinished files were removed. Free some space, or "
                    "keep fewer with [checkpoint] keep_latest_k, and continue from the newest complete "
                    f"checkpoint with --resume ({where})."
                ) from error
            raise TrainingError(
                f"the checkpoint {str(checkpoint)!r} could not be written: {reason}. Its unfinished files "
                "were removed; check the disk, the quota and the permissions of the folder, and continue "
                f"from the newest complete checkpoint with --resume ({where})."
            ) from error


class _Manager(CheckpointManager):  # type: ignore[misc]  # torchtitan has no types
    """TorchTitan's manager; it loads without running code, and leaves the deletion to ``Checkpoints``."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """TorchTitan's own settings."""

    def dcp_load(
        self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool
    ) -> None:
        """Loads the values of ``state_dict`` in place.

        Args:
            state_dict: flattened states.
            checkpoint_id: the checkpoint's folder.
            from_hf: never.
            from_quantized: never.
        """
        assert not from_hf
        assert not from_quantized
        load_checkpoint(state_dict, Path(checkpoint_id))
        self.states[MODEL].load_state_dict(state_dict)

    def _purge_stale_checkpoints(self) -> None:
        """Deletes nothing: the new checkpoint has no manifest yet."""


def _error_numbers(error: BaseException) -> Iterator[int | None]:
    """Yields the errno of an error and of the errors of ranks that it holds."""
    if isinstance(error, CheckpointException):
        for failure, _ in error.failures.values():
            yield from _error_numbers(failure)
    elif isinstance(error, OSError):
        yield error.errno
