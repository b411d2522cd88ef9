"""The critic's part of a step: values before the update, the state after the answer, its own update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import titanrl
from tests.unit.engine.conftest import LENGTH, make_batch
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Optimizer, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.engine.settings import CriticModel
from titanrl.models import tiny
from titanrl.training.critic import critic_values, update_critic


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("model") / "value", head="value", scale=0.2)


@pytest.fixture
def engine(folder: Path, tmp_path: Path) -> Engine:
    critic = CriticModel(path=str(folder), optimizer=Optimizer(lr=1e-3))
    training = Training(seq_len=LENGTH + 8, mixed_precision_param="float32")
    return Engine(EngineConfig(model=str(tiny.create(tmp_path / "policy")), critic=critic, training=training))


def test_final_value_is_that_of_the_state_after_the_last_response_token(engine: Engine, folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    batch = make_batch()
    mask = batch["loss_mask"]
    mask[0, 14] = False  # an observation inside the answer
    mask[1] = torch.arange(LENGTH) >= 30  # the answer fills the batch: what follows has no column
    found = critic_values(engine.critic, batch, ("value", "final_value"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    for row in range(len(batch)):
        if not mask[row].any():
            assert found["final_value"][row] == 0
            continue
        last = int(mask[row].nonzero().max())
        raw = torch.cat([batch["input_ids"][row, : last + 1], batch["labels"][row, last : last + 1]])
        with torch.no_grad():
            values = model.score(model.model(raw[None]).last_hidden_state)[0, :, 0]
        torch.testing.assert_close(found["final_value"][row], values[-1], atol=2e-5, rtol=1e-5)
        wanted = torch.where(mask[row, : last + 1], values[:-1], 0.0)
        torch.testing.assert_close(found["value"][row, : last + 1], wanted, atol=2e-5, rtol=1e-5)
    plain = critic_values(engine.critic, batch)
    assert plain.keys() == {"value"}
    torch.testing.assert_close(plain["value"], found["value"], atol=2e-6, rtol=1e-5)


def test_critic_update_leaves_the_policy_and_ignores_corrections(engine: Engine) -> None:
    batch = make_batch()
    batch.update(critic_values(engine.critic, batch))
    batch["returns"] = batch["loss_mask"].float()
    batch["correction_weight"] = torch.zeros_like(batch["returns"])
    policy = {name: value.clone() for name, value in engine.weights()}
    objective = Objective(loss=titanrl.build("loss", {"name": "value", "clip": float("inf")}))
    losses = []
    for _ in range(3):
        sums = update_critic(engine.critic, batch, objective)
        losses.append(sums["critic/loss"][0])
    error = (batch["value"] - 1).square() / 2
    assert losses[0] == pytest.approx(
        float(torch.where(batch["loss_mask"], error * batch["loss_weight"], 0).sum()), rel=1e-5
    )
    assert losses[2] < losses[1] < losses[0]
    assert sums.keys() == {
        f"critic/{name}"
        for name in (
            "loss",
            "nonfinite",
            "clip_fraction",
            "grad_norm",
            "lr",
            "skipped",
            "nonfinite_gradients",
            "computed_tokens",
        )
    }
    assert all(torch.equal(value, policy[name]) for name, value in engine.weights())
