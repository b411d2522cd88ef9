"""Mutants of experiments, data files and model folders are refused with an error that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from titanrl.models.tiny import create
from tools.fuzz import fuzz_config, fuzz_data, fuzz_models

pytestmark = pytest.mark.slow

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").rglob("*.toml"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("fuzz") / "model", context=4096)


def test_mutants_of_experiments_are_refused_or_sound(model: Path) -> None:
    report = fuzz_config(EXPERIMENTS, model, count=2000, seed=20)
    assert report.faults == []
    assert report.refused > 1000


def test_mutants_of_data_files_are_refused_or_sound(model: Path) -> None:
    report = fuzz_data(model, count=300, seed=20)
    assert report.faults == []
    assert min(report.refused, report.accepted) > 50


@pytest.mark.filterwarnings("ignore")
def test_damaged_model_folders_are_refused_or_sound(model: Path) -> None:
    report = fuzz_models(model, count=60, seed=20)
    assert report.faults == []
    assert min(report.refused, report.accepted) > 5
