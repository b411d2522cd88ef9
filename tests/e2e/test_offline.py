"""Complete offline runs of the tiny model, started from experiment files."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.torchrun import train_on_ranks
from tests.e2e.test_training import ROOT, assert_resumes_bitwise, lines, weights
from titanrl.config import load
from titanrl.errors import ConfigError
from titanrl.models import tiny
from titanrl.training import offline
from titanrl.training.run import train

FILE = """
base = "{root}/experiments/algorithms/{preset}.toml"
[run]
folder = "{folder}/runs"
name = "{preset}"
[model]
path = "{folder}/model"
[data]
name = "dataset"
path = "{root}/tests/experiments/data/{format}.jsonl"
format = "{format}"
[loop]
steps = 5
prompts_per_step = 4
[evaluation]
interval = 2
num_prompts = 5
[evaluation.data]
name = "dataset"
path = "{root}/tests/experiments/data/{format}.jsonl"
format = "{format}"
[training]
seq_len = 128
max_tokens_per_microbatch = 150
mixed_precision_param = "float32"
[optimizer]
lr = 1e-2
[checkpoint]
interval = 1
keep_latest_k = 0
[report]
tensorboard = false
"""
FORMATS = {"sft": "messages", "dpo": "preference", "kto": "unpaired", "rm": "preference"}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Returns a function from a preset to an experiment of five steps on the tiny model."""
    tiny.create(tmp_path / "model", scale=0.3)

    def write(preset: str) -> Path:
        path = tmp_path / f"{preset}.toml"
        path.write_text(FILE.format(root=ROOT, folder=tmp_path, preset=preset, format=FORMATS[preset]))
        return path

    return write


@pytest.mark.parametrize("preset", ["sft", "dpo", "kto"])
def test_run_stopped_at_any_step_and_resumed_gives_the_same_weights_bitwise(
    write: Any, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twelve examples, four a step: the third step ends an epoch.
    file = write(preset)
    assert_resumes_bitwise(file, (1, 3, 4), within=offline, weights=weights, monkeypatch=monkeypatch)


def test_workers_do_not_change_a_run_and_it_resumes_bitwise(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_bitwise(
        write("dpo"),
        [3],
        within=offline,
        weights=weights,
        monkeypatch=monkeypatch,
        overrides=["loop.data_workers=2"],
    )
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_run_of_one(write: Any, tmp_path: Path) -> None:
    presets = ("sft", "dpo", "kto")
    # kto scores its reference in each step.
    cache = {preset: [f"reference.cache={tmp_path}/"] if preset == "dpo" else [] for preset in presets}

    def runs(name: str) -> dict[str, tuple[Path, list[str]]]:
        return {
            f"{preset}_{name}": (write(preset), ["loop.steps=3", *(each + name for each in cache[preset])])
            for preset in presets
        }

    alone = [
        train(load(file, [*overrides, f"run.name={name}"])) for name, (file, overrides) in runs("one").items()
    ]
    together = train_on_ranks(tmp_path / "ranks", 2, runs("two")).values()
    for run_of_one, run_of_two in zip(alone, together, strict=True):
        for one, two in zip(lines(run_of_one), lines(run_of_two), strict=True):
            assert one.keys() - {"time/"} == two.keys() - {"time/"}
            for key in one:
                if key.endswith("accuracy") and one["step"] <= 1:
                    continue  # The policy is its reference: all margins are 0, and rounding has the say.
                if not key.startswith("time/") and key != "update/computed_tokens":
                    assert two[key] == pytest.approx(one[key], rel=2e-4, abs=2e-5), (one["step"], key)


def test_supervised_loss_nears_zero_on_a_few_examples(write: Any, tmp_path: Path) -> None:
    overrides = [
        "loop.steps=40",
        "loop.prompts_per_step=12",
        "evaluation.interval=0",
        "checkpoint.enable=false",
    ]
    run = train(load(write("sft"), overrides))
    first, *_, last = lines(run)
    assert first["eval/loss"] > 3.0
    assert last["eval/loss"] < 0.05
    assert last["loss/total"] < 0.05


def test_preferences_are_learned_from_ln_2(write: Any) -> None:
    first, *steps = lines(train(load(write("dpo"))))
    assert first["eval/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert first["eval/margin"] == pytest.approx(0.0, abs=1e-6)
    assert steps[0]["loss/total"] == pytest.approx(0.693147, abs=1e-5)
    assert steps[-1]["eval/margin"] > 1.0
    assert steps[-1]["eval/accuracy"] == 1.0
    assert steps[-1]["eval/loss"] < 0.3


def test_reward_model_learns_the_preferred_response(write: Any) -> None:
    first, *steps = lines(train(load(write("rm"), ["loop.steps=8"])))
    assert steps[-1]["eval/loss"] < 0.7 * first["eval/loss"]
    assert steps[-1]["eval/accuracy"] == 1.0


def test_every_metric_is_documented_and_samples_are_written(write: Any) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for preset in FORMATS:
        run = train(load(write(preset), ["loop.steps=2"]))
        for row in lines(run):
            for name in row.keys() - {"step"}:
                documented = f"`{name}`" in page or f"`{name.replace('eval/', 'loss/')}`" in page
                assert documented or re.fullmatch(r"time/\w+_seconds", name), name
        sample = lines(run, "samples.jsonl")[0]
        assert {"prompt", "response", "loss_tokens", "tokens", "group"} <= sample.keys()
        assert (run / "curves.png").is_file()


def test_invalid_and_overlong_rows_are_refused_before_training(write: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"messages": [{"role": "user", "content": "q"}]}))
    for overrides, message in (
        ([f"data.path={bad}"], rf"{bad}:1: messages has no assistant message"),
        (["training.seq_len=30"], r"messages\.jsonl:\d+: \[data\] has a row of \d+ tokens, more than"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(load(write("sft"), overrides))
    assert not list((tmp_path / "runs").iterdir()), "a refused run leaves no folder"


def test_on_overlong_drop_drops_and_counts_rows(write: Any) -> None:
    overrides = ["training.seq_len=60", "data.on_overlong=drop", "evaluation.data.on_overlong=drop"]
    steps = lines(train(load(write("sft"), overrides)))
    assert sum(step.get("data/dropped", 0.0) for step in steps) > 0
    assert all(step["data/row_tokens_max"] <= 60 for step in steps if step["step"])
    assert all(step["data/rows"] == 4 for step in steps if step["step"])
