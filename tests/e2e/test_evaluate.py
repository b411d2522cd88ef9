"""``titanrl evaluate`` on the tiny model."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.e2e.test_training import file, lines
from titanrl.cli import app
from titanrl.config import load
from titanrl.training.run import train

__all__ = ["file"]


def evaluate(*arguments):
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    return result


def test_run_and_its_exported_model_score_as_at_the_end_of_the_run(file, tmp_path):
    run = train(load(file, ["loop.steps=2"]))
    last = lines(run)[-1]
    assert evaluate(run, "--output", tmp_path / "run.json").exit_code == 0
    scores = json.loads((tmp_path / "run.json").read_text())
    for name in ("score", "reward_repetition_mean", "response_tokens_mean"):
        assert scores[name]["mean"] == pytest.approx(last[f"eval/{name}"], abs=1e-6)
    assert scores["score"]["low"] == pytest.approx(last["eval/score_low"], abs=1e-6)
    assert (scores["num_prompts"], scores["model"]) == (2, str(run))
    # The file alone judges the model that training began with; --model any other, here the run again.
    begin = evaluate(file, "--output", tmp_path / "begin.json")
    assert "95% interval" in begin.output
    begun = json.loads((tmp_path / "begin.json").read_text())
    assert begun["score"]["mean"] == pytest.approx(lines(run)[0]["eval/score"], abs=1e-6)
    assert evaluate(file, "--model", run, "--output", tmp_path / "again.json").exit_code == 0
    assert json.loads((tmp_path / "again.json").read_text()) == scores


def test_two_models_are_compared_prompt_by_prompt(file, tmp_path):
    run = train(load(file, ["loop.steps=2"]))
    files = {name: tmp_path / f"{name}.json" for name in ("both", "end", "begin")}
    samples = ["--set=evaluation.samples_per_prompt=2", "--set=evaluation.temperature=1.0"]
    result = evaluate(run, "--baseline", tmp_path / "model", "--output", files["both"], *samples)
    assert result.exit_code == 0, result.output
    assert evaluate(run, "--output", files["end"], *samples).exit_code == 0
    assert evaluate(file, "--output", files["begin"], *samples).exit_code == 0
    both, end, begin = (json.loads(files[name].read_text()) for name in ("both", "end", "begin"))
    against = both.pop("baseline")
    difference = against.pop("difference")
    assert (both, against) == (end, begin)
    assert difference["mean"] == pytest.approx(end["score"]["mean"] - begin["score"]["mean"], abs=1e-6)
    assert difference["low"] <= difference["mean"] <= difference["high"]
    assert f"paired score difference from {tmp_path / 'model'}: {difference['mean']:+.3f}" in result.output


def test_several_responses_give_intervals_of_every_metric(file, tmp_path):
    settings = ("samples_per_prompt=4", "temperature=1.0", "best_of_reward=repetition")
    overrides = [f"--set=evaluation.{each}" for each in settings]
    assert evaluate(file, *overrides, "--output", tmp_path / "scores.json").exit_code == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    score, pair, four = (scores[name] for name in ("score", "best_of_2", "best_of_4"))
    assert score["mean"] < pair["mean"] <= four["mean"] <= 0
    assert score["low"] < score["mean"] < score["high"]


def test_evaluate_reports_targets_that_cannot_be_evaluated(file, tmp_path):
    result = evaluate(file, "--set=evaluation=")
    assert result.exit_code == 2
    assert "[evaluation.prompts] is missing; evaluate a file with held-out prompts" in result.output
    run = train(load(file, ["loop.steps=1"]))
    shutil.rmtree(run / "checkpoints")
    assert "holds no complete checkpoint" in evaluate(run).output
    one = evaluate(file, "--set=evaluation.best_of_reward=repetition")
    assert "best_of_reward must be left out with samples_per_prompt = 1" in one.output


def test_evaluate_reports_the_reason_of_failed_scores(file, tmp_path):
    (tmp_path / "evaluated_rewards.py").write_text(
        "from dataclasses import dataclass\nfrom titanrl import register\n\n"
        '@register("reward", "brittle_evaluation")\n@dataclass(frozen=True, slots=True, kw_only=True)\n'
        "class Brittle:\n"
        '    """Fails."""\n'
        "    def __call__(self, batch):\n"
        "        raise RuntimeError('out of ink')\n"
    )
    sets = [
        f"imports=['{tmp_path}/evaluated_rewards.py']",
        "reward=[{name='brittle_evaluation', label='pen'}]",
    ]
    result = evaluate(file, *(f"--set={each}" for each in sets), "--output", tmp_path / "scores.json")
    assert result.exit_code == 0, result.output
    wanted = (
        "2 rewards failed and count as [[reward]] failure_score. First errors: pen: RuntimeError: out of ink"
    )
    assert wanted in " ".join(result.output.split())
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert (scores["reward_failures"], scores["reward_failure_reasons"]) == (
        2,
        {"pen": "RuntimeError: out of ink"},
    )
