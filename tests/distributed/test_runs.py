"""Runs on tensor-, pipeline- and expert-parallel ranks equal the run and the export of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.torchrun import train_on_ranks
from titanrl.engine.export import export_run
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
FILE = """
base = "{root}/experiments/algorithms/{preset}.toml"
[run]
folder = "{folder}/runs"
[model]
path = "{folder}/{model}"
[loop]
steps = 2
prompts_per_step = 4
[training]
seq_len = 128
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
eps = 1e-3
[checkpoint]
interval = 2
[report]
tensorboard = false
progress = false
"""
SAMPLED = """
[prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 8
[[reward]]
name = "repetition"
n = 1
[evaluation]
interval = 2
num_prompts = 3
[evaluation.prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
"""
FIXED = """
[data]
name = "dataset"
path = "{root}/tests/experiments/data/preference.jsonl"
format = "preference"
[evaluation]
interval = 2
num_prompts = 3
[evaluation.data]
name = "dataset"
path = "{root}/tests/experiments/data/preference.jsonl"
format = "preference"
"""
ENVIRONMENT = """
[environment]
name = "guess_number"
largest = 9
max_turns = 3
[[reward]]
name = "environment"
weight = 2.0
"""
"""Rollouts of three turns, each a row of its own: the template forgets the turns of the policy."""
CRITIC = "[critic.optimizer]\nlr = 1e-3\neps = 1e-3\n"
TENSOR, PIPELINE = "parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2"
EXPERT = "parallelism.expert_parallel_degree=2"
RUNS = {
    "grpo tensor": ("grpo", [TENSOR]),
    "grpo pipeline": ("grpo", [PIPELINE]),
    "ppo pipeline": ("ppo", [PIPELINE]),
    "shared tensor": ("shared", [TENSOR]),
    "shared pipeline": ("shared", [PIPELINE]),
    "dpo tensor": ("dpo", [TENSOR]),
    "mixture experts": ("mixture", [EXPERT]),
    "environment data": ("environment", ["parallelism.data_parallel_shard_degree=2"]),
    "environment tensor": ("environment", [TENSOR]),
    "environment pipeline": ("environment", [PIPELINE]),
}
"""Run -> experiment, and the mesh of two ranks."""
TEMPLATE = "{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}assistant: "
SAME = (
    "environment/turns",
    "environment/rows",
    "sample/tokens",
    "reward/mean",
    "loss/total",
    "update/grad_norm",
    "critic/grad_norm",
    "critic/loss",
    "critic/explained_variance",
    "eval/score",
    "eval/loss",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tied tiny model, a mixture of experts, prompts and an experiment of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    tiny.create(folder / "model", scale=0.3)
    tiny.create(folder / "mixture", model_type="qwen3_moe", tied=False, scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    for name, preset, rest in (
        ("grpo", "grpo", SAMPLED),
        ("ppo", "ppo", SAMPLED + CRITIC),
        ("dpo", "dpo", FIXED),
        ("mixture", "grpo", SAMPLED),
        ("shared", "ppo_shared", SAMPLED),
        ("environment", "grpo", SAMPLED + ENVIRONMENT),
    ):
        model = "mixture" if name == "mixture" else "model"
        text = (FILE + rest).format(root=ROOT, folder=folder, preset=preset, model=model)
        if name == "environment":
            text = text.replace("[model]", f"[model]\nchat_template = {json.dumps(TEMPLATE)}")
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Path]:
    """The folder of every run, on one process by the experiment's name and on two by the run's."""
    done: dict[str, Path] = {}
    alone = {kind: (kind, []) for kind in ("grpo", "ppo", "shared", "dpo", "mixture", "environment")}
    for processes, cases in ((1, alone), (2, RUNS)):
        files = {name: (folder / f"{kind}.toml", overrides) for name, (kind, overrides) in cases.items()}
        done |= train_on_ranks(folder / str(processes), processes, files, timeout_seconds=500)
    return done


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_model_parallel_run_equals_one_process(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    one, two = runs[RUNS[name][0]], runs[name]
    for wanted, actual in zip(lines(one), lines(two), strict=True):
        assert wanted.keys() == actual.keys()
        for key in SAME:
            if key in wanted:
                assert actual[key] == pytest.approx(wanted[key], rel=1e-4, abs=1e-5), (wanted["step"], key)
    expected = load_file(export_run(one, tmp_path / "one") / "model.safetensors")
    weights = load_file(export_run(two, tmp_path / "two") / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert ("lm_head.weight" in weights) == (RUNS[name][0] == "mixture")
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, atol=1e-5, rtol=1e-4, msg=key)
