"""Mutants of experiments, data files, model folders and checkpoints are refused, with what is wrong named."""

from __future__ import annotations

from pathlib import Path

import pytest

from titanrl.engine import restore
from titanrl.models.tiny import create
from tools.fuzz import fuzz_checkpoints, fuzz_config, fuzz_data, fuzz_models

pytestmark = pytest.mark.slow

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").rglob("*.toml"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("fuzz") / "model", context=4096)


def test_mutants_of_experiments_are_refused_or_sound(model: Path) -> None:
    report = fuzz_config(EXPERIMENTS[::4], model, count=2000, seed=20)
    assert report.faults == []
    assert report.refused > 1000


@pytest.mark.sweep
def test_mutants_of_all_experiments_are_refused_or_sound(model: Path) -> None:
    report = fuzz_config(EXPERIMENTS, model, count=10_000, seed=21)
    assert report.faults == []


def test_mutants_of_data_files_are_refused_or_sound(model: Path) -> None:
    report = fuzz_data(model, count=300, seed=20)
    assert report.faults == []
    assert min(report.refused, report.accepted) > 50


@pytest.mark.filterwarnings("ignore")
def test_damaged_model_folders_are_refused_or_sound(model: Path) -> None:
    report = fuzz_models(model, count=60, seed=20)
    assert report.faults == []
    assert min(report.refused, report.accepted) > 5


@pytest.mark.filterwarnings("ignore")
def test_damaged_checkpoints_are_refused_and_forged_ones_end_in_no_traceback(model: Path) -> None:
    report = fuzz_checkpoints(model, count=30, seed=20)
    assert report.faults == []
    assert min(report.kinds["damaged"], report.kinds["forged"]) > 5


@pytest.mark.filterwarnings("ignore")
def test_fuzzer_reports_damage_that_the_manifest_does_not_find(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "file_problem", lambda *_: "")
    assert fuzz_checkpoints(model, count=10, seed=20).faults
