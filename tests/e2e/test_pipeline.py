"""Pipelines on the tiny model: whole, broken off and carried on, and their mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.e2e.test_training import ROOT, file, lines
from titanrl.cli import app
from titanrl.errors import ConfigError
from titanrl.recipes import run
from titanrl.recipes.checks import check_pipeline
from titanrl.recipes.settings import load_pipeline

__all__ = ["file"]

SFT = """
base = "{root}/experiments/algorithms/sft.toml"
[model]
path = "{folder}/model"
[data]
name = "dataset"
path = "nowhere.jsonl"
format = "prompt_completion"
[loop]
steps = 3
prompts_per_step = 4
[training]
seq_len = 64
mixed_precision_param = "float32"
[optimizer]
lr = 1e-2
[checkpoint]
interval = 1
[report]
tensorboard = false
"""
PIPELINE = """
evaluate = "experiment.toml"

[[stage]]
name = "rl"
train = "experiment.toml"
set = ["loop.steps=1"]

[[stage]]
name = "best"
rft = "experiment.toml"
set = ["model.path='{rl.model}'", "rft.samples_per_prompt=3", "rft.include_truncated=true"]

[[stage]]
name = "tuned"
train = "sft.toml"
set = ["model.path='{rl.model}'", "data.path='{best.data}'"]
"""


@pytest.fixture
def pipeline(file: Path, tmp_path: Path) -> Path:
    """Reinforcement learning, its best answers, supervised training on them."""
    (tmp_path / "sft.toml").write_text(SFT.format(root=ROOT, folder=tmp_path))
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE)
    return path


def start(path: Path, *overrides: str) -> list[Any]:
    folder = path.parent / "out"
    return run.run_recipe(load_pipeline(path, folder, overrides), folder)


def test_stages_use_earlier_outputs_and_end_in_a_table_and_a_plot(pipeline, capsys):
    results = start(pipeline)
    out = pipeline.parent / "out"
    assert [(each.name, each.scores is not None) for each in results] == [
        ("start", True),
        ("rl", True),
        ("best", False),
        ("tuned", True),
    ]
    assert f"{out}/best/data/answers.jsonl" in (out / "tuned" / "run" / "experiment.toml").read_text()
    assert f"{out}/rl/model" in (out / "best" / "data" / "experiment.toml").read_text()
    # The score of a stage is that of its exported model, as the run itself evaluated it at its end.
    assert results[1].scores["score"]["mean"] == pytest.approx(lines(out / "rl" / "run")[-1]["eval/score"])
    assert results[2].remark.startswith("7 rows of 21 answers to 7 prompts")
    summary = json.loads((out / "summary.json").read_text())
    assert [each["name"] for each in summary] == [each.name for each in results]
    assert (out / "summary.png").stat().st_size > 5000
    printed = capsys.readouterr().out
    assert "stage 2 of 3, best: rft" in printed
    assert "held-out score" in printed


def test_failed_stage_is_resumed_and_finished_ones_are_skipped(pipeline, monkeypatch, capsys):
    pipeline.write_text(PIPELINE.partition('\n\n[[stage]]\nname = "tuned"')[0])
    done: list[str] = []
    fails = ["export_run", "collect"]
    for name in ("train", "collect", "export_run", "evaluate_model"):
        original = getattr(run, name)

        def counted(*arguments: Any, name: str = name, original: Any = original, **settings: Any) -> Any:
            done.append(f"{name} resumed" if settings.get("resume") else name)
            if name in fails:
                fails.remove(name)
                raise OSError("the disk is full")
            return original(*arguments, **settings)

        monkeypatch.setattr(run, name, counted)
    for stage in ("rl", "best"):
        with pytest.raises(OSError, match="the disk is full"):
            start(pipeline)
        assert f"stage '{stage}' did not end; the same command carries on" in capsys.readouterr().out
    results = start(pipeline)
    assert [each.name for each in results] == ["start", "rl", "best"]
    assert done == [
        "evaluate_model",
        "train",
        "export_run",
        "train resumed",
        "export_run",
        "evaluate_model",
        "collect",
        "collect",
    ]
    assert [line["step"] for line in lines(pipeline.parent / "out" / "rl" / "run")] == [0, 1]
    assert start(pipeline) == results
    assert len(done) == 8
    for stored in ("rl/run", "best/data"):
        config = pipeline.parent / "out" / stored / "experiment.toml"
        kept = [
            each for each in config.read_text().splitlines() if not each.startswith("max_resample_attempts")
        ]
        config.write_text("\n".join(["# Made before there was another key.", *kept]))
    assert start(pipeline) == results
    with pytest.raises(ConfigError, match=r"stage 'rl' was finished with other values of optimizer\.lr; rem"):
        start(pipeline, "rl.optimizer.lr=1e-3")


def test_models_are_evaluated_again_after_the_evaluation_file_has_changed(pipeline, monkeypatch):
    pipeline.write_text(PIPELINE.partition('\n\n[[stage]]\nname = "best"')[0])
    before = start(pipeline)
    monkeypatch.setattr(run, "train", lambda *_, **__: pytest.fail("trained again"))
    after = start(pipeline, "evaluate.evaluation.num_prompts=1")
    assert [each.scores["num_prompts"] for each in before] == [2, 2]
    assert [each.scores["num_prompts"] for each in after] == [1, 1]
    monkeypatch.setattr(run, "evaluate_model", lambda *_: pytest.fail("evaluated again"))
    assert start(pipeline, "evaluate.evaluation.num_prompts=1") == after


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '{rl.model}\'", "rft',
            '{rk.model}\'", "rft',
            r"{rk.model} names no earlier stage; did you mean 'rl'",
        ),
        ("{best.data}", "{tuned.run}", r"{tuned.run} names no earlier stage; earlier: rl, best"),
        ("{best.data}", "{best.model}", r"nothing that stage 'best' leaves; it leaves {best.data}"),
        ('rft = "exp', 'train = "sft.toml"\nrft = "exp', r"must name an experiment file, got both"),
        ('name = "best"', 'name = "rl"', r"name must be unique, got 'rl' again"),
        ('rft = "', 'rfd = "', r"rfd is not a key, got .*; did you mean 'rft'"),
        ("loop.steps=1", "loop.stesp=1", r"stage 'rl': .*\n.*stesp is not a key"),
        (
            '"rft.samples_per_prompt=3", "rft.include_truncated=true"',
            "",
            r"stage 'best': .*\[rft\] is missing",
        ),
        ('evaluate = "experiment', 'evaluate = "expriment', r"evaluate: no such file: .*did you mean"),
    ],
)
def test_errors_are_reported_before_any_stage_runs(pipeline, old, new, message):
    text = pipeline.read_text()
    assert old in text
    pipeline.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_pipeline(pipeline, pipeline.parent / "out")


@pytest.mark.parametrize("folder", ["it's out", 'a "b" \\c', "é 😀"])
def test_paths_may_hold_any_character(pipeline, folder):
    pipeline.write_text(pipeline.read_text().replace("'{best.data}'", "{best.data}"))
    loaded = load_pipeline(pipeline, Path(folder))
    _, best, tuned = (loaded.experiment(stage, Path(folder)) for stage in loaded.stage)
    assert best.model.path == tuned.model.path == f"{folder}/rl/model"
    assert tuned.data.path == f"{folder}/best/data/answers.jsonl"
    assert tuned.run.folder == f"{folder}/tuned"
    assert loaded.judge(f"{folder}/x").model.path == f"{folder}/x"


def test_stage_that_cannot_run_is_refused_before_any_stage_runs(pipeline):
    out = pipeline.parent / "out"
    check_pipeline(load_pipeline(pipeline, out), out)
    wrong = ["tuned.training.seq_len=512", "best.parallelism.tensor_parallel_degree=3"]
    with pytest.raises(ConfigError) as caught:
        check_pipeline(load_pipeline(pipeline, out, [*wrong, "evaluate.training.seq_len=300"]), out)
    text = str(caught.value)
    assert "stage 'rl'" not in text
    for part in ("stage 'best'", "tensor_parallel_degree must divide", "stage 'tuned'", "evaluate: "):
        assert part in text
    # The model of stage rl is still to be made; it will be like the one that is trained there.
    assert "must be a model folder" not in text
    assert text.count("[training] seq_len must be <= 256") == 2


def test_check_reads_recipes(pipeline):
    def check(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["check", str(pipeline), *map(str, arguments)])

    assert "pipeline.toml: right" in check().output
    refused = check("--set", "best.model.path=nowhere")
    assert refused.exit_code == 2
    assert "stage 'best'" in refused.output
    assert "model folder 'nowhere' does not exist" in refused.output
    assert "--data reads experiments, not pipelines" in check("--data").output


def test_unreadable_recipe_file_is_reported(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary.toml is no UTF-8 text"):
        load_pipeline(tmp_path / "binary.toml", tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_pipeline(tmp_path, tmp_path)


def test_overrides_name_their_stage(pipeline):
    loaded = load_pipeline(pipeline, Path("out"), ["tuned.loop.steps=9", "evaluate.evaluation.num_prompts=1"])
    assert loaded.experiment(loaded.stage[2], Path("out")).loop.steps == 9
    assert loaded.judge("m").evaluation.num_prompts == 1
    with pytest.raises(ConfigError, match=r"must begin with a stage and a dot; did you mean 'tuned'"):
        load_pipeline(pipeline, Path("out"), ["tunde.loop.steps=9"])
