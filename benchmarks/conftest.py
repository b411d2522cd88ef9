"""Shared by the benchmarks of components."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """An OpenMP region waits for its slowest thread, so small operations are timed in one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Once a block of this size was freed, glibc keeps memory between calls, as in any training process.
    torch.empty(7_500_000)
    yield
    torch.set_num_threads(threads)
