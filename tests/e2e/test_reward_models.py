"""Reward models from data to a reward, on the tiny model: trained, evaluated, exported, used in a run."""

from __future__ import annotations

import json
from math import exp, log1p
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.e2e.test_training import ROOT, lines
from titanrl.config import load
from titanrl.engine.export import export_run
from titanrl.models import tiny
from titanrl.training.run import train as run_training

DATA = ROOT / "tests" / "experiments" / "data"
FILE = """
base = "{root}/experiments/algorithms/{preset}.toml"
[run]
folder = "{folder}/runs"
[model]
path = "{folder}/{model}"
[loop]
steps = 8
prompts_per_step = 4
[training]
seq_len = 128
mixed_precision_param = "float32"
[optimizer]
lr = 1e-2
[report]
tensorboard = false
progress = false
"""
LEARNING = """
[data]
name = "dataset"
path = "{data}/{format}.jsonl"
format = "{format}"
[evaluation]
interval = 0
[evaluation.data]
name = "dataset"
path = "{data}/{format}.jsonl"
format = "{format}"
"""
SAMPLING = """
[prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[sampler]
name = "scripted"
max_response_tokens = 12
answers = ["5", "2 + 3 = 5", "I think it is 6.", "6"]
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No curves: drawing them takes longer than the training."""
    monkeypatch.setattr("titanrl.report.recorder.plot", lambda *_: None)


@pytest.fixture
def train(tmp_path: Path) -> Any:
    """Returns a function that runs a preset on the tiny model and returns the run folder."""
    tiny.create(tmp_path / "language", scale=0.3)
    tiny.create(tmp_path / "value", head="value", scale=0.3)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "What is 2 + 3?", "answer": "5"}))

    def train(preset: str, tables: str, overrides: list[str], model: str = "language", **names: Any) -> Path:
        path = tmp_path / f"{preset}.toml"
        names |= {"root": ROOT, "folder": tmp_path, "data": DATA, "preset": preset, "model": model}
        path.write_text((FILE + tables).format(**names))
        return run_training(load(path, overrides))

    return train


@pytest.mark.parametrize(("preset", "format"), [("rm_ranking", "ranked"), ("prm", "stepwise")])
def test_rankings_and_process_labels_are_learned_from_ln_2(train: Any, preset: str, format: str) -> None:
    first, *_, last = lines(train(preset, LEARNING, [], format=format))
    assert first["eval/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert last["eval/loss"] < 0.55
    assert last["eval/accuracy"] > 0.8
    assert 0 <= last["eval/calibration_error"] <= 0.5


def test_margin_of_each_pair_is_in_the_loss(train: Any) -> None:
    run = train("rm", LEARNING, ["algorithm.loss.use_margin=true", "loop.steps=1"], format="preference")
    margins = [json.loads(line).get("margin", 0.0) for line in (DATA / "preference.jsonl").open()]
    assert set(margins) == {0.0, 0.5}
    # A new head scores every answer 0.
    wanted = sum(log1p(exp(margin)) for margin in margins) / len(margins)
    assert lines(run)[0]["eval/loss"] == pytest.approx(wanted, abs=1e-6)
    assert lines(run)[0]["eval/margin"] == pytest.approx(-sum(margins) / len(margins), abs=1e-6)


def test_centering_moves_scores_to_zero(train: Any) -> None:
    overrides = ["algorithm.loss.center=10.0", "loop.steps=30", "checkpoint.enable=false"]
    first, *_, last = lines(train("rm", LEARNING, overrides, model="value", format="preference"))
    assert abs(first["eval/score_mean"]) > 0.3
    assert abs(last["eval/score_mean"]) < 0.05
    assert last["eval/accuracy"] > 0.8  # Two scores of one size, one above 0 and one below, have the sum 0.


def test_each_head_learns_its_own_preference_and_is_exported_by_name(train: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    pairs = [("What is 2 + 3?", "2 + 3 = 5", "6"), ("What is 4 + 1?", "4 + 1 = 5", "3")]
    records = []
    for prompt, right, short in pairs:
        records.append({"prompt": prompt, "chosen": right, "rejected": short, "head": "right"})
        records.append({"prompt": prompt, "chosen": short, "rejected": right, "head": "short"})
    (tmp_path / "sided.jsonl").write_text("\n".join(map(json.dumps, records)))
    heads = "model.heads={right = 1.0, short = 0.25}"
    trained = train("rm", LEARNING.replace("{data}/{format}", "{folder}/sided"), [heads], format="preference")
    first, *_, last = lines(trained)
    assert first["eval/accuracy"] == 0.5
    assert last["eval/accuracy"] == 1.0  # A single head cannot do that: each pair occurs in both orders.
    folder = export_run(trained, tmp_path / "reward")
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert model.config.id2label == {0: "right", 1: "short"}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer.encode(pairs[0][0]) + tokenizer.encode(text) for text in pairs[0][1:]]
    right, short = (model(torch.tensor([row])).logits[0].tolist() for row in rows)
    assert right[0] > short[0]
    assert right[1] < short[1]
    reward = titanrl.build(
        "reward",
        {"name": "reward_model", "path": str(folder), "heads": {"short": -2.0, "right": 0.5}},
    )
    mask = torch.zeros(1, len(rows[0]), dtype=torch.bool)
    mask[0, -1] = True
    batch = TensorDict({"input_ids": torch.tensor([rows[0]]), "loss_mask": mask}, batch_size=[1])
    assert reward.scores(batch) == [pytest.approx(0.5 * right[0] - 2.0 * right[1], abs=1e-5)]


def test_unknown_head_is_named_with_its_row(train: Any, tmp_path: Path) -> None:
    record = {"prompt": "q", "chosen": "a", "rejected": "b", "head": "brave"}
    (tmp_path / "sided.jsonl").write_text(json.dumps(record))
    tables = LEARNING.replace("{data}/{format}", "{folder}/sided")
    for heads, message in (
        (
            "model.heads={brief = 1.0, right = 1.0}",
            r"sided\.jsonl:1: head must .*'brave'; did you mean 'brief'",
        ),
        ("loop.steps=1", r"sided\.jsonl:1: head must be one of \[model\] heads \(none\), got 'brave'"),
        ("model.heads={brief = 1.0}", r"heads must be two or more"),
    ):
        with pytest.raises(titanrl.ConfigError, match=message):
            train("rm", tables, [heads], format="preference")


def test_trained_reward_model_equals_transformers_in_a_run(train: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    trained = train("rm", LEARNING, [], format="preference")
    folder = export_run(trained, tmp_path / "reward")
    reward = f'[[reward]]\nname = "reward_model"\npath = "{folder}"\nmean = 0.5\nstd = 2.0\n'
    sizes = [
        "loop.steps=1",
        "loop.prompts_per_step=1",
        "loop.samples_per_prompt=4",
        "checkpoint.enable=false",
    ]
    run = train("rloo", SAMPLING + reward, [*sizes, "algorithm.kl=", "reference="])
    assert lines(run)[0]["reward/reward_model_failures"] == 0
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    samples = lines(run, "samples.jsonl")
    assert [each["finish_reason"] for each in samples] == ["stop", "stop", "length", "stop"]
    for each in samples:
        ids = tokenizer(each["prompt"] + each["response"], return_tensors="pt")["input_ids"]
        # Neither the end token is read nor, of an answer that was cut, the last token in its place.
        ids = ids[:, :-1] if each["finish_reason"] == "length" else ids
        wanted = (model(ids).logits.item() - 0.5) / 2.0
        assert each["rewards"]["reward_model"] == pytest.approx(wanted, abs=1e-5)
    assert len({each["rewards"]["reward_model"] for each in samples}) == 4
