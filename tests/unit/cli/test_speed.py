"""Commands that only read settings must not import torch."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import sys
from titanrl.cli import main
sys.argv = ["titanrl", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {"torch._C", "numpy", "tensordict", "torchtitan", "transformers", "vllm"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["check", "FILE"],
        ["show", "FILE"],
        ["show", "--schema"],
        ["components"],
        ["components", "loss", "ppo_clip"],
    ],
    ids=" ".join,
)
def test_reading_settings_loads_no_framework_and_takes_under_three_seconds(
    file: Path, arguments: list[str]
) -> None:
    command = [sys.executable, "-c", PROBE, *(str(file) if word == "FILE" else word for word in arguments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr + result.stdout
    # Processor time, so that a busy machine does not fail it.
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 3.0


WAKING = """
import sys
from titanrl.runtime.lazy import lazy_torch
lazy_torch()
import torch
assert "torch._C" not in sys.modules
import torch.nn.functional
from torch import nn
assert torch is sys.modules["torch"]
assert type(torch) is type(sys)
assert nn.Linear(2, 3)(torch.ones(1, 2)).shape == (1, 3)
assert float(torch.nn.functional.relu(torch.tensor(-1.0))) == 0.0
"""


@pytest.mark.slow
def test_lazy_torch_is_torch_once_it_is_used() -> None:
    result = subprocess.run([sys.executable, "-c", WAKING], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
