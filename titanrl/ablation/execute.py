"""Execution of an ablation's unfinished runs, several at a time, each in its own process."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from titanrl.ablation.plan import PlannedRun
from titanrl.errors import ConfigError
from titanrl.runtime.launch import run_ranks
from titanrl.runtime.parent import end_with_parent
from titanrl.runtime.stop import STOPPED, StopRequested, forced_code, listening, requested

__all__ = ["Execution", "Failure", "Slot", "execute", "log_file", "split_machine", "visible_devices"]

POLL_SECONDS = 0.2
STOP_MARGIN_SECONDS = 5.0
"""Time to wait for a run that was asked to stop, beyond its own limit."""
MAX_SOCKET_FOLDER = 64
"""Longest temporary folder, bytes: a socket's path has 107 at most, and multiprocessing adds up to 43."""
PRELOADED = ("titanrl.training.online", "titanrl.report.curves", "matplotlib.backends.backend_agg")
"""Modules that every run imports. A fork server imports them once, and each run is forked from it."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A share of this machine that executes one run at a time.

    Slots may have the same cores, so they are compared by identity.
    """

    cores: tuple[int, ...]
    devices: tuple[str, ...]
    """Entries of CUDA_VISIBLE_DEVICES; empty on a machine without GPUs."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended before its last step."""

    run: PlannedRun
    reason: str
    """The last line of its log."""


@dataclass(slots=True)
class Execution:
    """State of all runs, as a view shows it."""

    waiting: deque[PlannedRun]
    running: dict[Slot, tuple[PlannedRun, BaseProcess]]
    finished: list[PlannedRun]
    failed: list[Failure]


def split_machine(jobs: int, nproc: int, cores: Sequence[int], devices: Sequence[str]) -> list[Slot]:
    """Split the machine into ``jobs`` slots.

    Args:
        jobs: number of runs at a time.
        nproc: number of processes per run.
        cores: the CPU cores of the machine.
        devices: the GPUs of the machine, as CUDA_VISIBLE_DEVICES names them.

    Raises:
        ConfigError: there are GPUs, but fewer than processes.
    """
    if devices and jobs * nproc > len(devices):
        raise ConfigError(
            f"--jobs times --nproc must be <= {len(devices)}, the number of GPUs of this machine, "
            f"got {jobs} x {nproc}; lower one of them."
        )
    return [
        Slot(
            tuple(cores[index * len(cores) // jobs : (index + 1) * len(cores) // jobs] or cores),
            tuple(devices[index * nproc : (index + 1) * nproc]),
        )
        for index in range(jobs)
    ]


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def log_file(run: PlannedRun) -> Path:
    """Return the file that a run's output is written to."""
    return run.folder.path.parent / "logs" / f"{run.folder.path.name}.log"


def execute(
    runs: Sequence[PlannedRun],
    slots: Sequence[Slot],
    *,
    nproc: int = 1,
    view: Callable[[Execution], None] = lambda _: None,
    on_finished: Callable[[PlannedRun], None] = lambda _: None,
) -> list[Failure]:
    """Execute the unfinished runs and return the failures; a failed run does not stop the others.

    An interrupted run resumes at its newest checkpoint, or starts again if it has none.

    Args:
        runs: all runs of the ablation.
        slots: shares of the machine, one per concurrent run.
        nproc: number of processes per run.
        view: called with the state several times per second.
        on_finished: called with each finished run, including earlier ones; an exception ends the execution.

    Raises:
        ConfigError: a run folder holds a run with other settings.
    """
    execution = Execution(deque(), {}, [], [])
    for run in runs:
        (execution.finished if run.state() == "finished" else execution.waiting).append(run)
    for run in execution.finished:
        on_finished(run)
    context = _context(has_gpus=bool(slots[0].devices))
    try:
        while execution.waiting or execution.running:
            for slot in slots:
                if slot not in execution.running and execution.waiting:
                    run = execution.waiting.popleft()
                    execution.running[slot] = run, _start(context, run, slot, nproc)
            for slot, (run, process) in list(execution.running.items()):
                if not process.is_alive():
                    process.join()
                    del execution.running[slot]
                    if process.exitcode == 0 and run.state() == "finished":
                        execution.finished.append(run)
                        on_finished(run)
                    else:
                        execution.failed.append(Failure(run, _reason(run, process.exitcode)))
            view(execution)
            time.sleep(POLL_SECONDS)
    finally:
        _stop(execution.running)
    view(execution)
    return execution.failed


def _stop(running: Mapping[Slot, tuple[PlannedRun, BaseProcess]]) -> None:
    """Ask the runs to stop, wait until they have saved their state, and kill those that do not end."""
    for _, process in running.values():
        process.terminate()
    for run, process in running.values():
        process.join(run.experiment.run.stop_seconds + STOP_MARGIN_SECONDS)
        process.kill()
        process.join()


def _context(*, has_gpus: bool) -> BaseContext:
    """Return the multiprocessing context of the runs: a fork server with preloaded modules.

    With GPUs nothing is preloaded, because an initialized CUDA driver cannot be forked.
    """
    _choose_socket_folder()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([] if has_gpus else list(PRELOADED))
    return context


def _choose_socket_folder() -> None:
    """Let multiprocessing keep its sockets in /tmp if the temporary folder's path is too long for them."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"  # nosec B108: multiprocessing makes a private folder in it
        try:
            multiprocessing.util.get_temp_dir()  # Made once per process.
        finally:
            tempfile.tempdir = folder


def _start(context: BaseContext, run: PlannedRun, slot: Slot, nproc: int) -> BaseProcess:
    resume = run.state() == "unfinished" and run.folder.has_checkpoint
    log = log_file(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    if not resume and (aside := run.folder.set_aside()) is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"starts again: the run had no checkpoint; its records are in {aside}\n")
    arguments = (str(run.base), run.overrides, resume, str(log), slot, nproc)
    process: BaseProcess = context.Process(target=_train, args=arguments, name=run.folder.path.name)  # type: ignore[attr-defined]
    process.start()
    return process


def _train(base: str, overrides: Sequence[str], resume: bool, log: str, slot: Slot, nproc: int) -> None:
    """Execute one run in this process, like ``titanrl train``, on a slot of the machine."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with_parent(parent.pid)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(_environment(slot, nproc))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, slot.cores)
    if nproc > 1:
        words = [f"--set={each}" for each in overrides] + (["--resume"] if resume else [])
        sys.exit(run_ranks(nproc, ["train", base, *words]))
    from titanrl.config import load
    from titanrl.training.run import train

    experiment = load(base, overrides)
    with listening(experiment.run.stop_seconds):
        try:
            train(experiment, resume=resume)
        except StopRequested as stopped:
            print(f"stopped by {requested()}: {stopped}", file=sys.stderr)
            sys.exit(STOPPED if stopped.is_saved else forced_code())


def _environment(slot: Slot, nproc: int) -> Mapping[str, str]:
    threads = {"OMP_NUM_THREADS": str(max(len(slot.cores) // nproc, 1)), "PYTHONUNBUFFERED": "1"}
    return threads | ({"CUDA_VISIBLE_DEVICES": ",".join(slot.devices)} if slot.devices else {})


def _reason(run: PlannedRun, exitcode: int | None) -> str:
    log = log_file(run)
    lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{last} (exit code {exitcode}; {log})"
