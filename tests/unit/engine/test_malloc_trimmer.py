"""Freed memory is returned to the kernel once, and again only if the process has grown."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import titanrl.models.accelerator
import torch
from titanrl.engine.host_memory import MallocTrimmer, tune_malloc, resident_bytes

def in_pieces():
    made = [torch.ones(1 << 16) for _ in range(1200)]
    kept = made[::40]
    del made
    return kept

tune_malloc()
freed, sizes = MallocTrimmer(), []
kept = in_pieces()
for _ in range(2):
    sizes.append(resident_bytes("VmRSS") >> 20)
    freed.return_growth()
    sizes.append(resident_bytes("VmRSS") >> 20)
    again = in_pieces()
    del again
print(*sizes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="The kernel must tell what a process holds.")
def test_malloc_trimmer_returns_freed_memory_when_usage_grows() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    grown, returned, as_large, still_held = map(int, done.stdout.split())
    assert grown - returned > 200
    assert as_large <= grown * 17 / 16
    assert still_held == as_large > returned + 200
