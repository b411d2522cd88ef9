"""Profiles of selected steps: traces of operations and of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from titanrl.config.report_tables import Profile

__all__ = ["profiled"]

MEMORY_EVENTS = 200_000
"""Maximum number of recorded allocations; older ones are discarded to bound memory."""
ROWS = 40
"""Number of operations in the table of a trace."""


@contextmanager
def profiled(settings: Profile | None, step: int, folder: Path, rank: int) -> Iterator[None]:
    """Profile the body of the context if ``step`` is selected.

    Args:
        settings: the [profile] table; None: no profiling.
        step: number of the step, from 1.
        folder: folder of the files.
        rank: rank of this process, which is part of the file names.
    """
    if settings is None or step not in settings.steps:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"step-{step}-rank-{rank}"
    with ExitStack() as profilers:
        if settings.trace:
            profilers.enter_context(_traced(stem))
        if settings.memory:
            profilers.enter_context(_memory_recorded(stem))
        yield


@contextmanager
def _traced(stem: Path) -> Iterator[None]:
    with torch.profiler.profile() as profile:
        yield
    profile.export_chrome_trace(f"{stem}.json.gz")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = profile.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=ROWS)
    stem.with_suffix(".txt").write_text(table, "utf-8")


@contextmanager
def _memory_recorded(stem: Path) -> Iterator[None]:
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=MEMORY_EVENTS)
    try:
        yield
        memory._dump_snapshot(f"{stem}.pickle")  # type: ignore[no-untyped-call]
    finally:
        memory._record_memory_history(enabled=None)
