"""Opening of a run: its folder, its lock, and the checks of a resume, before anything slow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from titanrl.config.differences import Difference, check_accepted, differences, flattened
from titanrl.config.dump import to_table
from titanrl.config.load import load
from titanrl.data.fingerprint import Rows, compare, fingerprint
from titanrl.engine import collectives
from titanrl.engine.checkpoint_reader import UnfitCheckpoint
from titanrl.engine.restore import newest_whole
from titanrl.errors import ConfigError, TrainingError
from titanrl.report.folder import RunFolder
from titanrl.runtime.stop import StopRequested

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Checkpoint
    from titanrl.config.experiment import Experiment
    from titanrl.config.tables import Run

__all__ = ["OpenedRun", "open_run"]

T = TypeVar("T")

CONTENTS = "contents"
"""Key, below the table of a source, under which a change of its rows is accepted."""


@dataclass(slots=True)
class OpenedRun:
    """A run folder that this process group writes; only the first rank touches files."""

    experiment: Experiment
    folder: RunFolder
    is_main: bool
    resume: bool
    accept: Sequence[str] = ()
    """Keys whose changes the user accepts."""
    is_finished: bool = False
    """Whether nothing is left to do."""
    stored: dict[str, Any] = field(default_factory=dict)
    """Settings of the run that is resumed, plain values."""
    changes: list[Difference] = field(default_factory=list)
    """Differences between the run and the file that resumes it."""
    sources: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the sources, by table."""

    def check_source(self, table: str, source: Rows) -> None:
        """Record the fingerprint of a source, and compare it with that of the run that is resumed.

        Args:
            table: table of the source.
            source: its rows.

        Raises:
            ConfigError: its rows have changed and the change is not accepted.
        """
        _on_first_rank(self.is_main, lambda: self._check_source(table, source))

    def _check_source(self, table: str, source: Rows) -> None:
        self.sources[table] = fingerprint(source)
        stored = self.folder.last_session().get("sources", {}).get(table) if self.resume else None
        if stored is not None and (text := compare(stored, source)):
            change = Difference(f"{table}.{CONTENTS}", "rows of the run", "other rows", "changes", text)
            self._say([change])
            check_accepted([change], self.accept, self._known_keys())
            self.changes.append(change)

    def check_settings(self, step: int) -> None:
        """Compare the settings of the run that is resumed with the file, and print every difference.

        Args:
            step: number of finished steps.

        Raises:
            ConfigError: the file would change what the run measures and this is not accepted, or it has too
                few steps.
        """
        self.stored = _stored_settings(self.folder)
        current = _settings_of(self.experiment)
        self.changes = differences(self.stored, current)
        self._say(self.changes)
        check_accepted(self.changes, self.accept, self._known_keys())
        steps = self.experiment.loop.steps
        if steps < step:
            raise ConfigError(
                f"[loop] steps must be >= {step}, the steps that '{self.folder.path}' has done, got {steps}; "
                "raise it to train on."
            )
        self.is_finished = steps == step
        if self.is_finished:
            done = f"'{self.folder.path}' is finished: {step} of {steps} steps"
            self._print(f"{done}; raise [loop] steps to train on.")

    def begin(self, step: int) -> None:
        """Record the start of this process in the run folder.

        Args:
            step: number of finished steps.
        """
        if self.is_main:
            if self.resume:
                self._print(f"resumes '{self.folder.path}' after step {step}")
            facts = {"sources": self.sources, "changes": [str(each) for each in self.changes]}
            self.folder.begin_session(to_table(self.experiment), first_step=step, facts=facts)

    def check_owner(self) -> None:
        """Check that no other process has taken the folder.

        Raises:
            TrainingError: one has.
        """
        if self.is_main:
            self.folder.lock.verify()

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Turn errors of a checkpoint that does not fit the accepted changes into sentences."""
        try:
            yield
        except (Exception, CheckpointException) as error:
            if isinstance(error, ConfigError | TrainingError) and not isinstance(error, UnfitCheckpoint):
                raise
            keys = ", ".join(each.key for each in self.changes if each.effect != "none")
            if not keys:
                raise
            raise ConfigError(
                f"the checkpoint of '{self.folder.path}' does not fit the accepted changes of {keys} "
                f"({type(error).__name__}); undo them, or start a new run without --resume."
            ) from error

    def announce(self, phase: str) -> None:
        """Print, on the first rank, what the run does next before its first step."""
        if self.is_main:
            self._print(phase)

    def _say(self, changes: Sequence[Difference]) -> None:
        effects = {"none": "harmless", "changes": "changes what is measured", "impossible": "impossible"}
        for each in changes:
            self._print(f"changed since the run: {each}; {effects[each.effect]}")

    def _print(self, line: str) -> None:
        print(line, flush=True)
        self.folder.log(line)

    def _known_keys(self) -> set[str]:
        """Return the keys that may be accepted."""
        sources = {f"{table}.{CONTENTS}" for table in self.experiment.sources()}
        return sources | flattened(self.stored).keys() | flattened(_settings_of(self.experiment)).keys()


@contextmanager
def open_run(experiment: Experiment, *, resume: bool, accept: Sequence[str] = ()) -> Iterator[OpenedRun]:
    """Claim the folder of a new run, or of the newest run of its name, and lock it; a collective.

    The folder of a new run that ends by a user's mistake, or by Ctrl-C, before anything is recorded is
    removed.

    Args:
        experiment: a checked experiment.
        resume: whether to continue the newest run of that name.
        accept: keys whose changes are accepted; "all" accepts every change that is possible.

    Raises:
        ConfigError: there is no such run, another process writes it, it has no complete checkpoint, or the
            file changes it in ways that are not accepted.
    """
    if accept and not resume:
        raise ConfigError("--accept must be given with --resume; a new run accepts every setting.")
    is_main = dist.get_rank() == 0
    folder: RunFolder | None = None  # Of the first rank, once it holds the lock.

    def open_folder() -> OpenedRun:
        nonlocal folder
        folder = _reopen(experiment.run) if resume else _create(experiment)
        opened = OpenedRun(experiment, folder, is_main, resume, accept)
        if resume:
            opened.check_settings(_resumable_step(folder, experiment.checkpoint))
        return opened

    try:
        opened = _on_first_rank(is_main, open_folder)
        path, changes, is_finished = collectives.broadcast_object(
            (opened.folder.path, opened.changes, opened.is_finished) if opened is not None else None
        )
        yield opened or OpenedRun(
            experiment, RunFolder(path), is_main, resume, accept, is_finished, changes=changes
        )
    except BaseException as error:
        if folder is not None:
            folder.log(f"ended by {type(error).__name__}: {error}")
            is_unused = not folder.has_records and not folder.checkpoints.exists()
            if (
                not resume
                and is_unused
                and isinstance(error, ConfigError | KeyboardInterrupt | StopRequested)
            ):
                shutil.rmtree(folder.path)
        raise
    finally:
        if folder is not None:
            folder.lock.release()


def _on_first_rank(is_main: bool, compute: Callable[[], T]) -> T | None:
    """Return the result of ``compute`` on the first rank, None on the others, which do not call it.

    Raises:
        ConfigError: the first rank raised one; every rank raises it.
    """
    result, error = None, None
    if is_main:
        try:
            result = compute()
        except OSError as raised:
            error = ConfigError(f"the run folder can't be written: {raised}.")
        except ConfigError as raised:
            error = raised
    error = collectives.broadcast_object(error)
    if error is not None:
        raise error
    return result


def _create(experiment: Experiment) -> RunFolder:
    """Claim and lock the folder of a new run, and write its settings."""
    run = experiment.run
    folder = RunFolder.claim(Path(run.folder), run.name or "run")
    folder.lock.acquire()
    folder.write_experiment(to_table(experiment), run.seed)
    return folder


def _reopen(run: Run) -> RunFolder:
    """Find and lock the folder of the newest run of a name."""
    folder = RunFolder.newest(Path(run.folder), run.name or "run")
    folder.lock.acquire()
    return folder


def _resumable_step(folder: RunFolder, checkpoints: Checkpoint) -> int:
    """Return the number of finished steps of the newest complete checkpoint.

    Raises:
        ConfigError: there is none, or checkpoints are disabled.
    """
    if not checkpoints.enable:
        raise ConfigError(
            "--resume needs checkpoints, got [checkpoint] enable = false; remove it to continue from the "
            f"checkpoints of '{folder.path}', or start a new run without --resume."
        )
    checkpoint = newest_whole(folder.checkpoints)
    if checkpoint is None:
        raise ConfigError(
            f"--resume found no complete checkpoint in '{folder.checkpoints}'; nothing was changed. Start a "
            "new run without --resume; it gets a folder of its own."
        )
    return int(checkpoint.name.removeprefix("step-"))


def _settings_of(experiment: Experiment) -> dict[str, Any]:
    return _with_kind(to_table(experiment))


def _with_kind(table: dict[str, Any]) -> dict[str, Any]:
    """Return a resolved file in which [loop] names the kind of loop, which has a default per kind of data."""
    loop = {"kind": "offline" if "data" in table else "online", **table.get("loop", {})}
    return {**table, "loop": loop}


def _stored_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings that the last process trained the run with.

    They are read with today's keys: a key that did not exist then has its default.

    Raises:
        ConfigError: the file is missing or broken.
    """
    try:
        return _settings_of(load(folder.config))
    except ConfigError as error:
        try:  # Renamed keys, or components that no longer exist: they count as differences.
            return _with_kind(tomli.loads(folder.config.read_text("utf-8")))
        except (OSError, ValueError):
            raise ConfigError(f"--resume cannot read the settings of the run: {error}") from None
