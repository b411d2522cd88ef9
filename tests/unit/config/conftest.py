"""Experiment files in a temporary folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from titanrl.registry import catalog as registry

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
        if "." not in name and name.endswith(
            ("_lab", "_components", "_losses", "_import", "_name", "_digit", "_sampler")
        ):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Returns a function that writes a file: by default the lab's experiment."""

    def write(text: str = EXPERIMENT, name: str = "experiment.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
