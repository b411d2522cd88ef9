"""Every shipped recipe on the tiny model, one step per stage, so that its files fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from titanrl.models import tiny
from titanrl.recipes.checks import check_recipe
from titanrl.recipes.run import run_recipe
from titanrl.recipes.settings import load_recipe

FOLDER = Path(__file__).parents[2] / "experiments" / "recipes"
# Responses of a tiny model are never correct, so letters that do not repeat are rewarded.
REWARD = "reward=[{name='repetition', n=1, label='reasoning_gym'}]"
ANSWERING = (
    "training.seq_len=256",
    "sampler.name=torch",
    "sampler.max_response_tokens=6",
    "evaluation.num_prompts=2",
    "evaluation.reward=reasoning_gym",
)
TRAINING = ("loop.steps=1", "loop.prompts_per_step=2", "checkpoint.interval=1", "report.tensorboard=false")
SAMPLING = (
    "rft.num_prompts=4",
    "rft.samples_per_prompt=6",
    "rft.include_truncated=true",
    "rft.min_reward=-inf",
    "rft.min_margin=0.0",
    "report.progress=false",
)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_shipped_recipe_runs_every_stage(name, tmp_path):
    path, model = FOLDER / f"{name}.toml", tiny.create(tmp_path / "model", scale=0.3)
    plain = load_recipe(path, tmp_path)
    assert plain.evaluate is not None
    overrides = [f"evaluate.{each}" for each in (*ANSWERING, REWARD)]
    for stage in plain.stage:
        experiment = plain.experiment(stage, tmp_path)
        own = [*(TRAINING if stage.kind == "train" else SAMPLING)]
        own += ["training.seq_len=256"] if experiment.sampler is None else ANSWERING
        # A stage with its own reward model keeps it.
        own += [REWARD] if experiment.reward and experiment.reward[0].label == "reasoning_gym" else []
        if experiment.model.path == "models/smollm2-135m":
            own.append(f"model.path='{model}'")
        overrides += [f"{stage.name}.{each}" for each in own]
    recipe = load_recipe(path, tmp_path / "out", overrides)
    check_recipe(recipe, tmp_path / "out", 1)
    results = run_recipe(recipe, tmp_path / "out")
    assert [each.name for each in results] == ["start", *(stage.name for stage in plain.stage)]
    assert results[-1].scores is not None
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())) == len(results)
    assert (tmp_path / "out" / "summary.png").is_file()
