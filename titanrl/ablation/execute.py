"""Runs the unfinished runs of an ablation, several at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from titanrl.ablation.plan import PlannedRun
from titanrl.errors import ConfigError

__all__ = ["Execution", "Failure", "Slot", "devices", "execute", "log_of", "slots"]

POLL_SECONDS = 0.2
PRELOADED = ("titanrl.training.online", "titanrl.report.curves", "matplotlib.backends.backend_agg")
"""What every run imports. A server process imports it once, and each run starts as its copy."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A share of this machine, on which one run at a time works; two of the same cores are two shares."""

    cores: tuple[int, ...]
    devices: tuple[str, ...]
    """Its entries of CUDA_VISIBLE_DEVICES; empty on a machine without GPUs."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended before its last step."""

    run: PlannedRun
    reason: str
    """The last line of its log."""


@dataclass(slots=True)
class Execution:
    """How far all is; what a view shows."""

    waiting: deque[PlannedRun]
    running: dict[Slot, tuple[PlannedRun, BaseProcess]]
    finished: list[PlannedRun]
    failed: list[Failure]


def slots(jobs: int, nproc: int, cores: Sequence[int], devices: Sequence[str]) -> list[Slot]:
    """Returns the shares of ``jobs`` runs at a time, of ``nproc`` processes each.

    Raises:
        ConfigError: there are GPUs, but not one for each process.
    """
    if devices and jobs * nproc > len(devices):
        raise ConfigError(
            f"--jobs times --nproc must be <= {len(devices)}, the GPUs of this machine, got {jobs} x {nproc};"
            " lower one."
        )
    return [
        Slot(
            tuple(cores[index * len(cores) // jobs : (index + 1) * len(cores) // jobs] or cores),
            tuple(devices[index * nproc : (index + 1) * nproc]),
        )
        for index in range(jobs)
    ]


def devices(environment: Mapping[str, str]) -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none: an empty list."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def log_of(run: PlannedRun) -> Path:
    """Returns the file into which a run's output goes."""
    return run.folder.path.parent / "logs" / f"{run.folder.path.name}.log"


def execute(
    runs: Sequence[PlannedRun],
    shares: Sequence[Slot],
    *,
    nproc: int = 1,
    view: Callable[[Execution], None] = lambda _: None,
    finished: Callable[[PlannedRun], None] = lambda _: None,
) -> list[Failure]:
    """Runs what is not finished yet and returns what failed; a failure does not stop the others.

    An interrupted run carries on from its newest checkpoint, or begins again if it has none.

    Args:
        view: is shown the state several times a second. finished: is told of each run that ends well; what
            it raises ends everything.

    Raises:
        ConfigError: a run folder holds a run of other settings.
    """
    execution = Execution(deque(), {}, [], [])
    for run in runs:
        (execution.finished if run.state() == "finished" else execution.waiting).append(run)
    for run in execution.finished:
        finished(run)
    context = _processes(gpus=bool(shares[0].devices))
    try:
        while execution.waiting or execution.running:
            for slot in shares:
                if slot not in execution.running and execution.waiting:
                    run = execution.waiting.popleft()
                    execution.running[slot] = run, _start(context, run, slot, nproc)
            for slot, (run, process) in list(execution.running.items()):
                if not process.is_alive():
                    process.join()
                    del execution.running[slot]
                    if process.exitcode == 0 and run.state() == "finished":
                        execution.finished.append(run)
                        finished(run)
                    else:
                        execution.failed.append(Failure(run, _reason(run, process.exitcode)))
            view(execution)
            time.sleep(POLL_SECONDS)
    finally:
        for _, process in execution.running.values():
            process.terminate()
    view(execution)
    return execution.failed


def _processes(*, gpus: bool) -> BaseContext:
    """Returns what starts the runs: copies of a server that has everything imported.

    With GPUs nothing is imported before: a driver that was asked for its devices cannot be copied.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([] if gpus else list(PRELOADED))
    return context


def _start(context: BaseContext, run: PlannedRun, slot: Slot, nproc: int) -> BaseProcess:
    resume = run.state() == "unfinished"
    if not resume:
        # A run that was ended while its models were built leaves a folder without its identity.
        shutil.rmtree(run.folder.path, ignore_errors=True)
    log = log_of(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = (str(run.base), run.overrides, resume, str(log), slot, nproc)
    process: BaseProcess = context.Process(target=_train, args=arguments, name=run.folder.path.name)  # type: ignore[attr-defined]
    process.start()
    return process


def _train(base: str, overrides: Sequence[str], resume: bool, log: str, slot: Slot, nproc: int) -> None:
    """One run, in its own process: what ``titanrl train`` does, on a share of the machine."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(_environment(slot, nproc))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, slot.cores)
    if nproc > 1:
        from titanrl.runtime.launch import torchrun

        words = [f"--set={each}" for each in overrides] + ["--resume"][: int(resume)]
        command = torchrun(nproc, ["train", base, *words])
        os.execv(command[0], command)
    from titanrl.config import load
    from titanrl.training.run import train

    train(load(base, overrides), resume=resume)


def _end_with_parent() -> None:
    """Ends this process when the one that wanted it is gone, so that a second call never meets a live run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _environment(slot: Slot, nproc: int) -> Mapping[str, str]:
    threads = {"OMP_NUM_THREADS": str(max(len(slot.cores) // nproc, 1)), "PYTHONUNBUFFERED": "1"}
    return threads | ({"CUDA_VISIBLE_DEVICES": ",".join(slot.devices)} if slot.devices else {})


def _reason(run: PlannedRun, exitcode: int | None) -> str:
    log = log_of(run)
    lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{last} (exit code {exitcode}; {log})"
