"""A critic's head on the policy's backbone: both outputs of one pass, one gradient, no export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from torch.distributed.tensor import DTensor

import titanrl
from tests.unit.engine.conftest import make_batch
from tests.unit.engine.test_engine import gradients_of
from titanrl.algorithm.objective import Objective
from titanrl.config import load
from titanrl.config.engine_tables import Checkpoint, Compile
from titanrl.engine import Engine
from titanrl.engine.restore import choose_checkpoint, load_weights
from titanrl.engine.settings import CriticModel
from titanrl.models import tiny
from titanrl.preflight.memory import estimate_rank_memory
from titanrl.training.critic import critic_values

Make = Callable[..., Engine]
EXPERIMENT = Path(__file__).parents[3] / "experiments" / "tiny_grpo.toml"
SHARED = CriticModel(path=None)
COEFFICIENT = 0.3


@pytest.fixture
def objective() -> Objective:
    return Objective(
        loss=titanrl.build("loss", {"name": "ppo_clip"}),
        value=titanrl.build("loss", {"name": "value", "clip": float("inf")}),
        value_coefficient=COEFFICIENT,
    )


def head_of(engine: Engine) -> torch.Tensor:
    """Returns the weights of the critic's head, [1, D]."""
    weight = engine.policy.scoring_model.model.head.get_parameter("value.weight").detach()
    return weight.to_local() if isinstance(weight, DTensor) else weight


def with_head(engine: Engine) -> torch.Tensor:
    """Sets the critic's head to weights that are not zero, and returns them, [D]."""
    weight = head_of(engine)
    weight.copy_(torch.linspace(-1, 2, weight.shape[1]))
    return weight[0].clone()


def scored(engine: Engine) -> TensorDict:
    batch = make_batch()
    actual = engine.score(batch, ("logprob", "value"))
    batch.update({"old_logprob": actual["logprob"], "value": actual["value"]})
    batch["returns"] = batch["value"] + batch["advantage"] * 2
    return batch


@pytest.mark.parametrize("tied", [True, False])
def test_shared_head_computes_policy_and_value_in_one_pass(
    tmp_path: Path, make_engine: Make, objective: Objective, tied: bool
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny.create(tmp_path / "model", tied=tied, scale=0.2)
    engine = make_engine(model=str(folder), critic=SHARED, training={"max_norm": 1e9})
    head = with_head(engine).requires_grad_()
    batch = scored(engine)
    mask = batch["loss_mask"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    hidden = model.model(batch["input_ids"]).last_hidden_state
    values = hidden @ head
    log_pi = model.lm_head(hidden).log_softmax(-1)
    logprob = log_pi.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(batch["value"], torch.where(mask, values, 0.0), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(batch["old_logprob"], torch.where(mask, logprob, 0.0), atol=2e-5, rtol=1e-5)

    recorded = gradients_of(engine)
    metrics = engine.update(batch, objective, (0.0, 0.0))
    ratio = (logprob - logprob.detach()).exp()
    weight = torch.where(mask, batch["loss_weight"], 0.0)
    regression = (weight * (values - batch["returns"]).square() / 2).sum()
    total = (weight * -ratio * batch["advantage"]).sum() + COEFFICIENT * regression
    total.backward()
    assert metrics["critic/loss"] == (pytest.approx(float(regression.detach()), rel=1e-5), 1.0)
    assert metrics["loss/total"] == (pytest.approx(float(total.detach()), rel=1e-4), 1.0)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    for ours, expected in (
        ("lm_head.value.weight", head.grad[None]),
        ("norm.weight", theirs["model.norm.weight"]),
        ("layers.0.feed_forward.w1.weight", theirs["model.layers.0.mlp.gate_proj.weight"]),
        ("tok_embeddings.weight", theirs["model.embed_tokens.weight"]),
    ):
        error = (recorded[0][ours] - expected).abs().max() / expected.abs().max()
        assert error < 1e-5, f"{ours}: {float(error):.1e}"


@pytest.mark.slow
def test_value_head_of_a_shared_critic_is_only_in_checkpoints(
    tmp_path: Path, make_engine: Make, model_folder: Path, objective: Objective
) -> None:
    table = Checkpoint(interval=1)
    engine = make_engine(critic=SHARED, checkpoints=tmp_path / "checkpoints", checkpoint=table)
    plain = make_engine()
    batch = scored(engine)
    assert not batch["value"].any()  # A new head gives 0 everywhere.
    assert torch.equal(batch["old_logprob"], plain.score(batch)["logprob"])
    engine.update(batch, objective, (0.0, 0.0))
    engine.save(1)
    engine.close()
    assert head_of(engine).any()
    streamed = dict(engine.weights())
    assert streamed.keys() == dict(plain.weights()).keys()
    engine.export(tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == load_file(model_folder / "model.safetensors").keys()
    with engine.inference() as (decoder,), plain.inference() as (other,):
        tokens = batch["input_ids"][:1]
        assert decoder(tokens, attention_masks=None).shape == other(tokens, attention_masks=None).shape
    checkpoint = choose_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    load_weights(plain.modules, checkpoint)
    assert all(torch.equal(value, streamed[name]) for name, value in plain.weights())


@pytest.mark.slow
def test_checkpoint_restores_the_critics_head(
    tmp_path: Path, make_engine: Make, objective: Objective
) -> None:
    table = Checkpoint(interval=1)
    options = {"critic": SHARED, "checkpoints": tmp_path / "checkpoints", "checkpoint": table}
    engine = make_engine(**options)
    batch = scored(engine)
    engine.update(batch, objective, (0.0, 0.0))
    engine.save(1)
    engine.close()
    again = make_engine(**options)
    assert again.load()
    recorded = []
    for each in (engine, again):
        each.update(batch, objective, (0.0, 0.0))
        recorded.append(each.score(batch, ("value",))["value"])
    again.close()
    assert recorded[0].any()
    assert torch.equal(*recorded)


@pytest.mark.slow
def test_compiled_update_equals_eager(make_engine: Make, objective: Objective) -> None:
    recorded = []
    for enable in (False, True):
        compile = Compile(enable=enable, components=("loss",), backend="aot_eager")
        engine = make_engine(critic=SHARED, compile=compile)
        with_head(engine)
        batch = scored(engine)
        gradients = gradients_of(engine)
        metrics = engine.update(batch, objective, (0.0, 0.0))
        recorded.append((metrics, gradients[0]))
    (eager, of_eager), (compiled, of_compiled) = recorded
    assert compiled.keys() == eager.keys()
    for name, (value, count) in eager.items():
        assert compiled[name] == (pytest.approx(value, rel=1e-4, abs=1e-6), count), name
    for name, gradient in of_eager.items():
        torch.testing.assert_close(of_compiled[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_memory_of_a_shared_critic_is_one_backbone_and_a_head(make_engine: Make, model_folder: Path) -> None:
    head = ["algorithm.advantage={name='gae'}", "critic={shared=true}", f"model.path={model_folder}"]
    found = {need.name: need.size for need in estimate_rank_memory(load(EXPERIMENT, head), 1)}
    assert not [name for name in found if name.startswith("critic")]
    parameters = [each for part in make_engine(critic=SHARED).modules for each in part.parameters()]
    assert found["policy: weights"] == sum(each.nbytes for each in parameters)
    alone = {need.name: need.size for need in estimate_rank_memory(load(EXPERIMENT, head[2:]), 1)}
    assert found["policy: weights"] == alone["policy: weights"] + 4 * parameters[-1].shape[-1]


def test_policy_pass_computes_the_final_value_too(make_engine: Make) -> None:
    engine = make_engine(critic=SHARED)
    with_head(engine)
    batch = make_batch()
    plain = engine.score(batch, ("logprob", "entropy", "value"))
    actual = critic_values(engine.policy, batch, ("logprob", "entropy", "value", "final_value"))
    assert actual.keys() == {*plain, "final_value"}
    for key, value in plain.items():
        torch.testing.assert_close(actual[key], value, atol=2e-6, rtol=1e-5)
    trained = batch["loss_mask"].any(-1)
    assert (actual["final_value"] != 0).equal(trained)
