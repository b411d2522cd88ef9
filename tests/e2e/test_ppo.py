"""Whole runs with a critic on the tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.torchrun import train_on_ranks
from tests.e2e.test_training import FILE, ROOT, assert_resumes_bitwise, lines
from tests.metrics_page import documented_metrics
from titanrl.config import load
from titanrl.engine.export import export_run
from titanrl.models import tiny
from titanrl.training import online
from titanrl.training.run import train

CRITIC = """
[critic.optimizer]
lr = 1e-2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """PPO for three steps of two epochs of two minibatches, which end early; rewards are on one scale.

    The first step trains the critic alone.
    """
    tiny.create(tmp_path / "model", scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    path = tmp_path / "experiment.toml"
    text = FILE.format(root=ROOT, folder=tmp_path).replace("algorithms/grpo.toml", "algorithms/ppo.toml")
    sizes = "[algorithm.reward_scaling]\nclip = 3.0\n[loop]\nminibatches = 2\nepochs = 2\ntarget_kl = 0.03\n"
    text = text.replace("[loop]\n", sizes).replace("steps = 4", "steps = 3")
    path.write_text(f"{text}{CRITIC}[critic]\nwarmup_steps = 1\n")
    return path


def both(run: Path, to: Path) -> dict[str, torch.Tensor]:
    """Returns the exported weights of policy and critic."""
    policy = load_file(export_run(run, to / "policy") / "model.safetensors")
    critic = load_file(export_run(run, to / "critic", critic=True) / "model.safetensors")
    return policy | {f"critic.{name}": value for name, value in critic.items()}


def test_resumed_run_gives_the_same_policy_and_critic_bitwise(file, monkeypatch):
    assert_resumes_bitwise(file, (1, 2), within=online, weights=both, monkeypatch=monkeypatch)


def test_policy_is_frozen_during_critic_warmup_and_all_metrics_are_documented(file, tmp_path):
    run = train(load(file, ["loop.steps=2", "algorithm.advantage.bootstrap=truncated"]))
    rows = {row["step"]: row for row in lines(run)}
    assert [rows[step]["critic/warmup"] for step in (1, 2)] == [1.0, 0.0]
    assert "loss/total" not in rows[1]
    assert rows[1]["kl/value"] == pytest.approx(0.0, abs=1e-5)
    assert rows[2]["loss/clip_fraction"] > 0
    assert [rows[step]["update/early_stopped"] > 0 for step in (1, 2)] == [False, True]
    assert all(rows[step]["critic/grad_norm"] > 0 for step in (1, 2))
    assert rows[2]["critic/lr"] == pytest.approx(1e-2)
    for row in rows.values():
        for name in row.keys() - {"step"}:
            assert name in documented_metrics("repetition") or re.fullmatch(r"time/\w+_seconds", name), name


def test_critic_learns_the_value_of_a_constant_reward_at_each_token(file):
    # A discounted reward of 1 is a function of the position alone, as nearly all answers have one length.
    overrides = [
        "reward=[{name='format_regex', pattern='.*'}]",
        "algorithm.advantage.gamma=0.8",
        "evaluation=",
        "algorithm.advantage.lam=1.0",
        "critic.warmup_steps=11",
        "loop.steps=12",
        "checkpoint.enable=false",
        "algorithm.kl=",
        "reference=",
    ]
    run = train(load(file, overrides))
    explained = [row["critic/explained_variance"] for row in lines(run) if row["step"]]
    assert explained[0] == pytest.approx(0.0, abs=1e-6)  # A new head says 0 everywhere.
    assert explained[-1] > 0.5


def policy(run: Path, to: Path) -> dict[str, torch.Tensor]:
    return load_file(export_run(run, to) / "model.safetensors")


def shared(file: Path) -> Path:
    """Returns the same experiment with the critic on the policy's backbone, without warm-up."""
    text = file.read_text().replace(f"{CRITIC}[critic]\nwarmup_steps = 1\n", "")
    path = file.with_name("shared.toml")
    path.write_text(text.replace("algorithms/ppo.toml", "algorithms/ppo_shared.toml"))
    return path


def test_resumed_run_with_a_shared_critic_continues_bitwise(file, monkeypatch):
    assert_resumes_bitwise(shared(file), (1, 2), within=online, weights=policy, monkeypatch=monkeypatch)


def test_shared_critic_learns_on_the_policys_backbone(file, tmp_path):
    from transformers import AutoModelForCausalLM

    overrides = [
        "reward=[{name='format_regex', pattern='.*'}]",
        "algorithm.advantage.gamma=0.8",
        "evaluation=",
        "algorithm.advantage.lam=1.0",
        "algorithm.advantage.bootstrap=truncated",
        "loop.steps=12",
        "algorithm.kl=",
        "reference=",
        "critic.loss.clip=inf",
        "critic.coefficient=1.0",
        "algorithm.reward_scaling=",
        "loop.target_kl=",
    ]
    run = train(load(shared(file), overrides))
    rows = [row for row in lines(run) if row["step"]]
    assert rows[0]["critic/explained_variance"] == pytest.approx(
        0.0, abs=1e-6
    )  # A new head says 0 everywhere.
    # The returns lose their variance as the policy learns, so the critic's error is the measure that holds.
    assert 0 <= rows[-1]["critic/loss"] < 0.3 * rows[0]["critic/loss"]
    for row in rows:
        assert not {"critic/grad_norm", "critic/lr", "critic/warmup"} & row.keys()
        for name in row.keys() - {"step"}:
            assert name in documented_metrics("format_regex") or re.fullmatch(r"time/\w+_seconds", name), name
    exported = export_run(run, tmp_path / "exported")
    _, said = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not said["unexpected_keys"]
    assert not said["missing_keys"]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_run_of_one(file, tmp_path):
    runs, exported = {}, {}
    found = {1: train(load(file, ["run.name=of1", "evaluation="]))}
    found[2] = train_on_ranks(tmp_path / "ranks", 2, {"of2": (file, ["evaluation="])})["of2"]
    for nproc, run in found.items():
        runs[nproc], exported[nproc] = lines(run), both(run, tmp_path / run.name)
    keys = (
        "reward/mean",
        "loss/total",
        "update/grad_norm",
        "critic/loss",
        "critic/grad_norm",
        "critic/explained_variance",
    )
    for one, two in zip(runs[1], runs[2], strict=True):
        for key in keys:
            assert (key in one) == (key in two)
            assert two.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=1e-3, abs=1e-5), (
                one["step"],
                key,
            )
    head = "critic.score.weight"
    torch.testing.assert_close(exported[2][head], exported[1][head], atol=1e-4, rtol=1e-2)
