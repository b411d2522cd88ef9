"""Start-up: CPU time of commands that read settings relative to the import of a peer's trainer.

`titanrl show` and `check` report a typing error in a file after this time; a trainer that is configured in
Python reports it after its imports. Run: ``make bench ONLY=startup``.
"""

from __future__ import annotations

import importlib.util
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / "experiments" / "tiny_grpo.toml"
PEER = "from trl import GRPOConfig, GRPOTrainer"
ROUNDS = 3

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="needs TRL: `make bench` installs it"
)


def cpu_seconds(*arguments: str) -> float:
    """Returns the CPU time of a Python process, including its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("command", ["show", "help"])
def test_command_starts_before_trl_is_imported(command: str, benchmark: Any) -> None:
    ours = ("-m", "titanrl", *{"help": ["--help"], "show": ["show", str(FILE)]}[command])
    cpu_seconds(*ours)
    if benchmark.disabled:
        return
    seconds: dict[str, list[float]] = {"ours": [], "trl": []}
    cpu_seconds("-c", PEER)
    for _ in range(ROUNDS):
        seconds["trl"].append(cpu_seconds("-c", PEER))
        seconds["ours"].append(cpu_seconds(*ours))
    ratio = statistics.median(seconds["trl"]) / statistics.median(seconds["ours"])
    benchmark.extra_info.update(seconds=seconds, ratio=ratio)
    benchmark.pedantic(lambda: None, rounds=1)
    assert ratio >= 5, benchmark.extra_info
