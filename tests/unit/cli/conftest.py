"""Fixtures: an experiment file that passes all checks, because its model exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.conftest import EXPERIMENT, registry_as_before
from titanrl.models.tiny import create

__all__ = ["file", "model", "registry_as_before"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("models") / "tiny", context=128)


@pytest.fixture
def file(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "lab.toml"
    text = EXPERIMENT.replace("models/none", str(model)) + "[training]\nseq_len = 128\n"
    path.write_text(text)
    return path
