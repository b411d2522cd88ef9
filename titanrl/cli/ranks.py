"""Processes of a command: one under a parent, several that it starts, or one process of a launcher."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from titanrl.errors import ConfigError, TrainingError
from titanrl.runtime import status
from titanrl.runtime.heartbeat import beating
from titanrl.runtime.launch import LAUNCHER, STATUS, launched, run_ranks, slurm_environment
from titanrl.runtime.lazy import lazy_torch
from titanrl.runtime.parent import end_with_parent
from titanrl.runtime.stop import STOPPED, StopRequested, forced_code, listening, requested, write_line
from titanrl.runtime.supervise import fork

__all__ = ["NPROC", "OWN_PROCESS", "become_ranks", "stoppable", "supervised", "world_size"]

NPROC = Annotated[int, typer.Option(min=1, help="Number of processes on this machine.")]
OWN_PROCESS = ContextVar("OWN_PROCESS", default=False)
"""Whether the command line has the process for itself, so that it may fork and handle signals."""
VERDICT_SECONDS = 10.0
"""Time that an error of a rank's connection waits for the report of the lost rank that caused it."""


def supervised(command: Callable[..., None]) -> Callable[..., None]:
    """Run a command in a child process, so that every way in which it can end is reported.

    With ``--nproc`` above 1, the process that starts the ranks does this for them.
    """

    @functools.wraps(command)
    def run(**options: Any) -> None:
        if OWN_PROCESS.get():
            os.environ.update(slurm_environment(os.environ))
            if STATUS in os.environ:
                end_with_parent(int(os.environ[LAUNCHER]), forked_by_main_thread=True)
                status.attach(int(os.environ[STATUS]))
            elif options.get("nproc", 1) == 1:
                if "TORCHELASTIC_RUN_ID" in os.environ:
                    end_with_parent(os.getppid(), forked_by_main_thread=True)
                fork(sys.argv[1:], is_spokesman=os.environ.get("RANK", "0") == "0")
        try:
            command(**options)
        except SystemExit as error:
            # The command itself raises none, but user code may.
            raise TrainingError(f"the process was ended by sys.exit({error.code!r}) in user code.") from error
        status.update(end="finished")

    return run


def world_size(nproc: int) -> int:
    """Return the number of processes that run this command, including those that ``nproc`` will start.

    Raises:
        ConfigError: a launcher has started processes already, and ``nproc`` requests more.
    """
    os.environ.update(slurm_environment(os.environ))
    is_rank = launched(os.environ)
    if nproc > 1:
        lazy_torch()  # This process only checks the file and starts the ranks.
    if is_rank and nproc > 1:
        raise ConfigError(
            f"--nproc must not be given under a launcher that has started {os.environ['WORLD_SIZE']} "
            f"processes already, got {nproc}; remove it."
        )
    return int(os.environ["WORLD_SIZE"]) if is_rank else nproc


def become_ranks(nproc: int, arguments: Sequence[str]) -> None:
    """Run ``nproc`` ranks and exit with their exit code; return if one process is enough.

    Args:
        nproc: number of ranks.
        arguments: arguments of ``titanrl`` on each rank.
    """
    if nproc == 1:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // nproc, 1)))
    sys.stdout.flush()
    raise typer.Exit(run_ranks(nproc, arguments))


@contextmanager
def stoppable(stop_seconds: float, stall_seconds: float | None = None) -> Iterator[None]:
    """Turn signals into requests to stop, and watch the other ranks, within the block.

    Args:
        stop_seconds: time from a signal to the end of this process.
        stall_seconds: time without a sign of life of a rank after which this rank ends; None: there are no
            ranks.

    Raises:
        Exit: a stop was requested; the outcome was printed.
    """
    if not OWN_PROCESS.get():
        yield
        return
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    watch: Any = nullcontext()
    if num_ranks > 1 and stall_seconds is not None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        watch = beating(rank, num_ranks, address, stall_seconds)

    def announce(reason: str) -> None:
        if rank == 0:
            write_line(f"{reason}: stopping within {stop_seconds:g} s; a second signal ends at once.")

    with listening(stop_seconds, on_request=announce), watch:
        try:
            yield
        except StopRequested as stopped:
            if rank == 0:
                write_line(f"stopped by {requested()}: {stopped}")
            status.update(end="reported")
            raise typer.Exit(STOPPED if stopped.is_saved else forced_code()) from None
        except (ConfigError, TrainingError):
            raise
        except RuntimeError:
            if num_ranks > 1:
                time.sleep(VERDICT_SECONDS)  # If its cause is a lost rank, this process is ended meanwhile.
            raise
