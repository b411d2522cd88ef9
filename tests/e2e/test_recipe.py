"""Recipes on the tiny model: complete runs, resumed runs, and errors."""

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
from titanrl.recipes.checks import check_recipe
from titanrl.recipes.settings import load_recipe

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
RECIPE = """
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
def recipe(file: Path, tmp_path: Path) -> Path:
    """Returns a recipe of RL, rejection sampling of its best responses, and SFT on them."""
    (tmp_path / "sft.toml").write_text(SFT.format(root=ROOT, folder=tmp_path))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def start(path: Path, *overrides: str) -> list[Any]:
    folder = path.parent / "out"
    return run.run_recipe(load_recipe(path, folder, overrides), folder)


def test_stages_use_earlier_outputs_and_end_in_a_table_and_a_plot(recipe, capsys):
    results = start(recipe)
    out = recipe.parent / "out"
    assert [(each.name, each.scores is not None) for each in results] == [
        ("start", True),
        ("rl", True),
        ("best", False),
        ("tuned", True),
    ]
    assert f"{out}/best/data/responses.jsonl" in (out / "tuned" / "run" / "experiment.toml").read_text()
    assert f"{out}/rl/model" in (out / "best" / "data" / "experiment.toml").read_text()
    # The score of a stage is that of its exported model, equal to the run's last validation.
    assert results[1].scores["score"]["mean"] == pytest.approx(lines(out / "rl" / "run")[-1]["eval/score"])
    assert results[2].remark.startswith("7 rows from 21 responses to 7 prompts")
    summary = json.loads((out / "summary.json").read_text())
    assert [each["name"] for each in summary] == [each.name for each in results]
    assert (out / "summary.png").stat().st_size > 5000
    printed = capsys.readouterr().out
    assert "stage 2 of 3, best: rft" in printed
    assert "held-out score" in printed


def test_failed_stage_is_resumed_and_finished_ones_are_skipped(recipe, monkeypatch, capsys):
    recipe.write_text(RECIPE.partition('\n\n[[stage]]\nname = "tuned"')[0])
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
            start(recipe)
        assert (
            f"stage '{stage}' did not finish; run the same command again to resume it"
            in capsys.readouterr().out
        )
    results = start(recipe)
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
    assert [line["step"] for line in lines(recipe.parent / "out" / "rl" / "run")] == [0, 1]
    assert start(recipe) == results
    assert len(done) == 8
    for stored in ("rl/run", "best/data"):
        config = recipe.parent / "out" / stored / "experiment.toml"
        kept = [
            each for each in config.read_text().splitlines() if not each.startswith("max_resample_attempts")
        ]
        config.write_text("\n".join(["# Written before the key existed.", *kept]))
    assert start(recipe) == results
    with pytest.raises(ConfigError, match=r"stage 'rl' was finished with other values of optimizer\.lr; rem"):
        start(recipe, "rl.optimizer.lr=1e-3")


def test_models_are_evaluated_again_after_the_evaluation_file_has_changed(recipe, monkeypatch):
    recipe.write_text(RECIPE.partition('\n\n[[stage]]\nname = "best"')[0])
    before = start(recipe)
    monkeypatch.setattr(run, "train", lambda *_, **__: pytest.fail("trained again"))
    after = start(recipe, "evaluate.evaluation.num_prompts=1")
    assert [each.scores["num_prompts"] for each in before] == [2, 2]
    assert [each.scores["num_prompts"] for each in after] == [1, 1]
    monkeypatch.setattr(run, "evaluate_model", lambda *_: pytest.fail("evaluated again"))
    assert start(recipe, "evaluate.evaluation.num_prompts=1") == after


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '{rl.model}\'", "rft',
            '{rk.model}\'", "rft',
            r"{rk.model} names no earlier stage; did you mean 'rl'",
        ),
        ("{best.data}", "{tuned.run}", r"{tuned.run} names no earlier stage; earlier stages: rl, best"),
        ("{best.data}", "{best.model}", r"is not an output of stage 'best'; it has {best.data}"),
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
def test_errors_are_reported_before_any_stage_runs(recipe, old, new, message):
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_recipe(recipe, recipe.parent / "out")


@pytest.mark.parametrize("folder", ["it's out", 'a "b" \\c', "é 😀"])
def test_paths_may_hold_any_character(recipe, folder):
    recipe.write_text(recipe.read_text().replace("'{best.data}'", "{best.data}"))
    loaded = load_recipe(recipe, Path(folder))
    _, best, tuned = (loaded.experiment(stage, Path(folder)) for stage in loaded.stage)
    assert best.model.path == tuned.model.path == f"{folder}/rl/model"
    assert tuned.data.path == f"{folder}/best/data/responses.jsonl"
    assert tuned.run.folder == f"{folder}/tuned"
    assert loaded.evaluation_of(f"{folder}/x").model.path == f"{folder}/x"


def test_stage_that_cannot_run_is_refused_before_any_stage_runs(recipe):
    out = recipe.parent / "out"
    check_recipe(load_recipe(recipe, out), out)
    wrong = ["tuned.training.seq_len=512", "best.parallelism.tensor_parallel_degree=3"]
    with pytest.raises(ConfigError) as caught:
        check_recipe(load_recipe(recipe, out, [*wrong, "evaluate.training.seq_len=300"]), out)
    text = str(caught.value)
    assert "stage 'rl'" not in text
    for part in ("stage 'best'", "tensor_parallel_degree must divide", "stage 'tuned'", "evaluate: "):
        assert part in text
    # The model of stage rl does not exist yet; it is assumed to be like its initial model.
    assert "must be a model folder" not in text
    assert text.count("[training] seq_len must be <= 256") == 2


def test_check_reads_recipes(recipe):
    def check(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["check", str(recipe), *map(str, arguments)])

    assert "recipe.toml: OK" in check().output
    refused = check("--set", "best.model.path=nowhere")
    assert refused.exit_code == 2
    assert "stage 'best'" in refused.output
    assert "model folder 'nowhere' does not exist" in refused.output
    assert "--data reads experiments, not recipes" in check("--data").output


def test_unreadable_recipe_file_is_reported(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary.toml is no UTF-8 text"):
        load_recipe(tmp_path / "binary.toml", tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_recipe(tmp_path, tmp_path)


def test_overrides_name_their_stage(recipe):
    loaded = load_recipe(recipe, Path("out"), ["tuned.loop.steps=9", "evaluate.evaluation.num_prompts=1"])
    assert loaded.experiment(loaded.stage[2], Path("out")).loop.steps == 9
    assert loaded.evaluation_of("m").evaluation.num_prompts == 1
    with pytest.raises(ConfigError, match=r"must begin with a stage and a dot; did you mean 'tuned'"):
        load_recipe(recipe, Path("out"), ["tunde.loop.steps=9"])
