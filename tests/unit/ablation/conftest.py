"""Fixtures: an ablation of the lab's experiment, whose model exists."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.unit.cli.conftest import file, model
from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.plan import PlannedRun
from titanrl.config import to_table

__all__ = ["file", "model", "registry_as_before"]

Ablation = Callable[..., Path]
Finish = Callable[..., None]

VARY = """
[vary]
algorithm.loss.clip_high = [0.2, 0.28]
"""


@pytest.fixture
def ablation(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ablation:
    """Return a function that writes an ablation of the lab's experiment; runs go to a temporary folder."""
    monkeypatch.chdir(tmp_path)

    def ablation(text: str = VARY, metric: str = "reward/mean", head: str = "") -> Path:
        path = tmp_path / "study.toml"
        path.write_text(f'base = "{file.name}"\nmetric = "{metric}"\nseeds = 3\n{head}\n{text}')
        return path

    return ablation


@pytest.fixture
def finish() -> Finish:
    """Return a function that writes the files of a run with given metrics."""

    def finish(run: PlannedRun, lines: list[Mapping[str, float]]) -> None:
        run.folder.path.mkdir(parents=True, exist_ok=True)
        run.folder.write_experiment(to_table(run.experiment), run.seed)
        run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return finish
