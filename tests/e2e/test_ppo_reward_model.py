"""The shipped PPO on a reward model, with tiny models: it runs and reports reward hacking."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_training import ROOT, lines
from tests.metrics_page import documented_metrics
from titanrl.config import load
from titanrl.models import tiny
from titanrl.training.run import train

# A random reward model and a policy that cannot add: only the score of the reward model can rise. Held to its
# reference the policy would stay where it is.
EXPLOITING = [
    "sampler={name='torch', max_response_tokens=8}",
    "training.seq_len=192",
    "loop.steps=16",
    "algorithm.advantage.lam=1.0",
    "loop.prompts_per_step=8",
    "optimizer.lr=1e-2",
    "critic.optimizer.lr=1e-2",
    "evaluation.interval=0",
    "evaluation.num_prompts=4",
    "evaluation.samples_per_prompt=1",
    "evaluation.temperature=0.0",
    "algorithm.kl=",
    "reference=",
    "alerts.window=2",
    "checkpoint.interval=16",
    "report.tensorboard=false",
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("titanrl.report.recorder.plot", lambda *_: None)
    policy = tiny.create(tmp_path / "policy", scale=0.3)
    rewarding = tiny.create(tmp_path / "rewarding", head="value", scale=0.3, seed=1)
    places = [f"model.path='{policy}'", f"run.folder='{tmp_path}'"]
    places += [f"{table}.path='{rewarding}'" for table in ("reward.0", "critic")]
    return train(load(ROOT / "experiments" / "ppo_reward_model.toml", [*places, *EXPLOITING]))


def test_exploited_reward_model_raises_the_reward_hacking_alert(run):
    rows = lines(run)
    assert rows[-1]["reward/reward_model"] > rows[1]["reward/reward_model"] + 0.5 * rows[1]["reward/std"]
    assert rows[-1]["eval/score"] <= rows[0]["eval/score"]
    alerts = [row for row in lines(run, "alerts.jsonl") if row["name"] == "reward_hacking"]
    assert [row["step"] for row in alerts] == [16]
    assert rows[-1]["reward/mean"] == pytest.approx(
        rows[-1]["reward/reward_model"]
    )  # the verifier moves nothing
    assert all(row["critic/explained_variance"] < 1 for row in rows[1:])
    names = {name for row in rows for name in row if not name.startswith("time/")} - {"step"}
    assert names <= documented_metrics("reward_model", "reasoning_gym")
