"""Log-probs of the reference from disk: equal to those of its model, and never those of another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.experiments.conftest import ROOT, Train, data
from titanrl.engine import Engine

PAIRS = f"{ROOT}/tests/experiments/data/preference.jsonl"
HELD_OUT = (
    f"evaluation={{interval=2, num_prompts=3, data={{name='dataset', format='preference', path='{PAIRS}'}}}}"
)


@pytest.fixture
def run(train: Train, tmp_path: Path) -> Any:
    """Returns a function that trains DPO with a cache, or without."""

    def run(*overrides: str, cached: bool = True) -> Any:
        cache = [f"reference.cache={tmp_path}/cache"] if cached else []
        return train("dpo", data("preference"), [*cache, HELD_OUT, "optimizer.lr=1e-2", *overrides])

    return run


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").iterdir()}


def numbers(trained: Any) -> list[dict[str, float]]:
    return [
        {key: value for key, value in step.items() if not key.startswith("time/")} for step in trained.steps
    ]


def test_cached_run_equals_the_online_run_without_a_second_model(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    online = run(cached=False)
    capsys.readouterr()
    first = run()
    assert re.search(r"^rows scored by the reference (\d+)/\1$", capsys.readouterr().out, re.MULTILINE)
    for one, other in zip(numbers(online), numbers(first), strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)
    assert online.session.engine.frozen.keys() == {"reference"}
    assert not first.session.engine.frozen
    (name,) = files(tmp_path)
    monkeypatch.setattr(
        "titanrl.engine.scoring_model.ScoringModel.score", lambda *_: pytest.fail("scored again")
    )
    built: list[Any] = []
    role = Engine._scoring_model
    monkeypatch.setattr(
        Engine, "_scoring_model", lambda self, *args, **keys: built.append(keys) or role(self, *args, **keys)
    )
    assert numbers(run()) == numbers(first)
    assert "rows scored" not in capsys.readouterr().out
    assert files(tmp_path) == {name}
    assert len(built) == 1, "the policy alone"


def test_other_weights_data_or_precision_invalidate_the_cache(run: Any, folder: Path, tmp_path: Path) -> None:
    run("loop.steps=1")
    shorter, other = tmp_path / "shorter.jsonl", tmp_path / "other"
    shorter.write_text("\n".join(Path(PAIRS).read_text().splitlines()[:-1]))
    other.mkdir()
    for path in (folder / "model").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 1.25)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changes = (f"data.path={shorter}", f"reference.path={other}", "reference.dtype=bfloat16")
    for count, change in enumerate(changes, 2):
        run("loop.steps=1", change)
        assert len(files(tmp_path)) == count
    run("loop.steps=1", "loop.prompts_per_step=2", "training.seq_len=200", f"reference.path={folder}/model")
    assert len(files(tmp_path)) == 4, "neither steps nor room nor a path change what the reference says"


def test_damaged_cache_is_named_and_computed_again(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run("loop.steps=1")
    (name,) = files(tmp_path)
    path = tmp_path / "cache" / name
    whole = path.read_bytes()
    for damaged in (whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:], whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        capsys.readouterr()
        assert numbers(run("loop.steps=1")) == numbers(first)
        assert f"reference cache {path} is damaged" in capsys.readouterr().out
        assert path.read_bytes() == whole
