"""Experiment files in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

LAB = Path(__file__).with_name("config_lab.py")

EXPERIMENT = f"""
imports = ["{LAB}"]
[model]
path = "models/none"
[prompts]
name = "lab_source"
dataset = "sums"
[sampler]
name = "lab_sampler"
max_response_tokens = 32
[[reward]]
name = "lab_match"
weight = 2
[algorithm.advantage]
name = "lab_advantage"
[algorithm.loss]
name = "lab_loss"
clip_low = 0.1
[algorithm.aggregation]
name = "lab_mean"
[algorithm.kl]
name = "lab_kl"
coefficient = 0.04
[reference]
[loop]
steps = 2
prompts_per_step = 8
"""

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def clean_registry(registry_as_before: None) -> None:
    """Every test here may register what it likes."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Returns a function that writes a file: the lab's experiment unless told otherwise."""

    def write(text: str = EXPERIMENT, name: str = "experiment.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
