"""Runs in environments on the tiny model: branches, turns, agents, evaluation and resume."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import titanrl
from titanrl.engine.export import export_run
from titanrl.models import tiny
from titanrl.registry import catalog

ROOT = Path(__file__).parents[2]
FILE = """
base = "{root}/experiments/algorithms/grpo.toml"
imports = ["{folder}/duel.py"]
[run]
folder = "{folder}/runs"
[model]
path = "{folder}/model"
[prompts]
name = "tasks"
prompt = "Guess a number from 1 to 9."
size = 32
[sampler]
name = "torch"
max_response_tokens = 8
[environment]
name = "guess_number"
largest = 9
max_turns = 3
[[reward]]
name = "environment"
[loop]
steps = 2
prompts_per_step = 2
samples_per_prompt = 4
[training]
seq_len = 256
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
[report]
tensorboard = false
progress = false
"""
DUEL = '''
from dataclasses import dataclass

from titanrl.protocols import Environment, Sampling, Trajectory
from titanrl.registry import register


@register("environment", "duel")
@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Game in which two agents of one policy speak in turns; the one with the larger first token wins."""

    def start(self, context):
        return Game(context)


class Game(Environment):
    def __init__(self, context):
        self.context = context

    async def run(self, row, ask):
        ids, first = list(row.prompt_ids), []
        for turn in range(4):
            completion = await ask(ids, Sampling(agent_id=turn % 2))
            first.append(completion.ids[0])
            ids += completion.ids
        won = first[2] > first[3]
        return Trajectory({0: float(won), 1: float(not won)}, turn_rewards=[0.0] * 4)
'''


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("environments")
    tiny.create(folder / "model", scale=0.3)
    (folder / "duel.py").write_text(DUEL)
    (folder / "file.toml").write_text(FILE.format(root=ROOT, folder=folder))
    yield folder
    catalog._classes["environment"].pop("duel", None)
    sys.modules.pop("duel", None)


def run(lab: Path, name: str, *overrides: str, **more: Any) -> tuple[Path, list[dict[str, Any]]]:
    experiment = titanrl.load(lab / "file.toml", [f"run.name={name}", *overrides])
    path = titanrl.train(experiment, **more)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return path, lines


def test_turns_that_a_template_rewrites_are_rows_that_count_once(lab: Path) -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}assistant: "
    path, lines = run(lab, "branches", f"model.chat_template={json.dumps(template)}")
    for line in lines:
        assert line["environment/rows"] == line["environment/turns"] > 1
        assert line["sample/logprob_diff"] < 1e-4
    samples = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    assert len({sample["transcript"][-1]["content"] for sample in samples}) > 1
    assert all(sample["transcript"][0]["role"] == "user" for sample in samples)


def test_one_row_holds_all_turns_of_an_ordinary_template(lab: Path) -> None:
    _, lines = run(lab, "rows")
    for line in lines:
        assert line["environment/rows"] == 1 < line["environment/turns"]
        assert line["sample/logprob_diff"] < 1e-4


def test_turns_are_compared_as_rows_of_their_own(lab: Path) -> None:
    _, lines = run(lab, "turns", "algorithm.advantage.name=gigpo", "environment.name=duel")
    for line in lines:
        assert line["environment/rows"] == line["environment/turns"] == 4
        assert line["sample/logprob_diff"] < 1e-4


@pytest.mark.parametrize(
    "advantage",
    [
        ("algorithm.advantage.name=rloo",),
        ("algorithm.advantage.name=hierarchical_grpo", "algorithm.advantage.episode_agents=[1]"),
        ("algorithm.advantage.name=ema_baseline",),
    ],
    ids=["rloo", "hierarchical_grpo", "ema_baseline"],
)
def test_agents_of_one_policy_play_against_each_other(lab: Path, advantage: tuple[str, ...]) -> None:
    overrides = ("environment.name=duel", *advantage)
    _, lines = run(lab, "duel", *overrides, "loop.steps=1")
    (line,) = lines
    assert line["environment/rows"] == 2
    assert line["reward/mean"] == pytest.approx(0.5)
    assert line["update/grad_norm"] > 0


def test_an_interrupted_run_continues_with_equal_weights(lab: Path, tmp_path: Path) -> None:
    whole, _ = run(lab, "whole", "checkpoint.interval=1")
    run(lab, "halves", "checkpoint.interval=1", "loop.steps=1")
    halves, _ = run(lab, "halves", "checkpoint.interval=1", resume=True)
    expected = load_file(export_run(whole, tmp_path / "whole") / "model.safetensors")
    for key, value in load_file(export_run(halves, tmp_path / "halves") / "model.safetensors").items():
        assert value.equal(expected[key]), key


def test_evaluation_plays_the_held_out_tasks(lab: Path) -> None:
    held_out = ("evaluation.samples_per_prompt=4", "evaluation.temperature=1.0", "evaluation.num_prompts=6")
    source = (
        "evaluation.prompts.name=tasks",
        "evaluation.prompts.prompt=Guess.",
        "evaluation.prompts.size=6",
    )
    first = ("evaluation.prompts.first=1000",)
    experiment = titanrl.load(lab / "file.toml", [*held_out, *source, *first, "environment.close_reward=0"])
    result = titanrl.evaluate(experiment)
    assert result.num_prompts == 6
    assert set(result.prompts) != {result.prompts[0]}
    assert {"score", "pass_at_2", "pass_at_4"} <= result.estimates.keys()
    assert result.estimates["pass_at_4"].mean >= result.estimates["score"].mean


def test_a_reward_that_no_component_reads_is_refused(lab: Path) -> None:
    text = (lab / "file.toml").read_text().replace('name = "environment"', 'name = "repetition"\nn = 1')
    (lab / "unread.toml").write_text(text)
    with pytest.raises(titanrl.errors.TrainingError, match="gives a reward that no"):
        titanrl.train(titanrl.load(lab / "unread.toml", ["run.name=unread"]))
