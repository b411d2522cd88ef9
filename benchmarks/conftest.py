"""Fixtures of the benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from titanrl.engine.host_memory import tune_malloc


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Time small operations in one thread, because an OpenMP region waits for its slowest thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tune_malloc()  # as in any training process
    yield
    torch.set_num_threads(threads)
