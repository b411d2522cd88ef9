"""A model family that a plug-in brings: a copy of a built-in record under another model_type."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.engine.conftest import make_batch, with_old
from titanrl.algorithm.objective import Objective
from titanrl.engine import Engine
from titanrl.errors import ConfigError
from titanrl.models import family as registry
from titanrl.models.families import qwen3
from titanrl.models.family import families, register_family
from titanrl.models.read_config import read_config
from titanrl.models.tiny import create


@pytest.mark.slow
@pytest.mark.parametrize("way", ["entry point", "call"])
def test_plug_in_family_trains_an_engine_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_engine: Callable[..., Engine],
    objective: Objective,
    way: str,
) -> None:
    families()
    monkeypatch.setattr(registry, "_families", dict(registry._families))
    folder = create(tmp_path / "model", model_type="qwen3", scale=0.2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    with pytest.raises(ConfigError, match="model_type 'mine' is not supported"):
        read_config(folder)
    record = replace(qwen3.FAMILY, name="mine", model_types=("mine",))
    if way == "call":
        register_family(record)
    else:
        monkeypatch.setattr(registry, "load_entry_points", lambda: register_family(record))
    engine = make_engine(model=str(folder))
    before = {name: value.clone() for name, value in engine.weights()}
    metrics = engine.update(with_old(make_batch(), engine), objective, (0.0, 0.0))
    assert metrics["update/skipped"][0] == 0
    assert all(not torch.equal(value, before[name]) for name, value in engine.weights())
