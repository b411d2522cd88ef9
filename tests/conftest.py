"""Shared by all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from titanrl import registry

if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    # Each worker, with all it starts, keeps to one core: threads of two that wait for each other cost more.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where whoever started the tests had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def registry_as_before() -> Iterator[None]:
    """Forgets the components that a test registers, so that laws over all components never meet them."""
    for kind in registry.kinds():
        registry.load(kind)
    classes = {kind: dict(known) for kind, known in registry._classes.items()}
    modules, path = set(sys.modules), list(sys.path)
    yield
    for kind, known in classes.items():
        registry._classes[kind].clear()
        registry._classes[kind].update(known)
    for name in set(sys.modules) - modules:
        if "." not in name and name.endswith(("_lab", "_components", "_losses", "_import", "_name")):
            del sys.modules[name]
    sys.path[:] = path
