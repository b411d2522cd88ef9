"""A small ablation by the command line: its result, and equality of its runs with ordinary runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.comparison import compare
from titanrl.ablation.files import read_results
from titanrl.ablation.plan import plan
from titanrl.config import load
from titanrl.models import tiny
from titanrl.training.run import train

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
FILE = """
base = "{root}/experiments/ablations/base.toml"
metric = "kl/value"
metrics = ["reward/mean"]
seeds = 2
[[variant]]
name = "no_kl"
algorithm.kl = {{ name = "k1", coefficient = 0.0 }}
reference = {{}}
[[variant]]
name = "k2_in_loss"
algorithm.kl = {{ name = "k2", coefficient = 3.0 }}
reference = {{}}
"""
OVERRIDES = (
    "model.path=model",
    'reward=[{name = "format_regex", pattern = "[0-9].*"}]',
    "optimizer.lr=0.01",
    "loop.steps=8",
    "evaluation=",
)


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads for later tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_ablation_finds_that_k2_in_the_loss_lowers_the_kl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.create("model", scale=0.3)
    Path("kl.toml").write_text(FILE.format(root=ROOT))
    command = [sys.executable, "-m", "titanrl", "ablate", "kl.toml", "--jobs", "2"]
    command += [f"--set={each}" for each in OVERRIDES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4/4 runs" in result.stdout
    measured = read_results(Path("runs/ablations/kl/results.csv"))
    rows = {(row.metric, row.variant): row for row in compare(measured, ["no_kl", "k2_in_loss"])}
    difference = rows["kl/value", "k2_in_loss"].difference
    assert difference is not None
    assert difference.pairs == 2
    assert difference.mean < 0
    assert "k2_in_loss" in Path("runs/ablations/kl/report.md").read_text()

    # A run is what `titanrl train` makes of the same words, to the last bit on as many threads.
    monkeypatch.setattr("titanrl.engine.set_threads", lambda: torch.set_num_threads(1))
    run = plan(Path("kl.toml"), OVERRIDES).runs[3]
    again = train(load(run.base, [*run.overrides, 'run.folder="again"']))
    assert metrics(again) == metrics(run.folder.path)
