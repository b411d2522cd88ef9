"""The engine in one process: logits, scores, gradients, and their invariances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import titanrl
from tests.unit.engine.conftest import full, make_batch, pad_columns, with_old
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import ActivationCheckpoint, Parallelism, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.engine.settings import FrozenModel
from titanrl.errors import ConfigError
from titanrl.models import tiny

Make = Callable[..., Engine]


def gradients_of(engine: Engine) -> list[dict[str, torch.Tensor]]:
    """Returns a list to which every later step appends its full gradients."""
    recorded: list[dict[str, torch.Tensor]] = []
    (optimizer,) = engine.policy.optimizers.optimizers

    def keep(*_: object) -> None:
        (group,) = optimizer.param_groups
        pairs = zip(group["param_names"], group["params"], strict=True)
        recorded.append({name: full(parameter.grad) for name, parameter in pairs})

    optimizer.register_step_pre_hook(keep)
    return recorded


def assert_same_gradients(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], atol: float) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], atol=atol, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_equals_log_softmax_of_transformers(
    make_engine: Make, model_folder: Path, temperature: float
) -> None:
    from transformers import AutoModelForCausalLM

    batch = make_batch()
    actual = make_engine(temperature=temperature).score(batch, ("logprob", "entropy"))
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        log_pi = (model(batch["input_ids"]).logits / temperature).log_softmax(-1)
    mask = batch["loss_mask"]
    logprob = log_pi.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(actual["logprob"], torch.where(mask, logprob, 0.0), atol=2e-5, rtol=1e-5)
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    torch.testing.assert_close(actual["entropy"], torch.where(mask, entropy, 0.0), atol=2e-5, rtol=1e-5)


def test_passes_use_the_temperature_that_is_set_now(make_engine: Make) -> None:
    batch, other = make_batch(), make_engine(temperature=0.7)
    engine = make_engine(temperature=1.3)
    before = engine.score(batch)["logprob"]
    engine.temperature = 0.7
    assert torch.equal(engine.score(batch)["logprob"], other.score(batch)["logprob"])
    assert not torch.equal(engine.score(batch)["logprob"], before)


def test_update_gradient_equals_autograd_on_transformers(
    make_engine: Make, model_folder: Path, objective: Objective
) -> None:
    from transformers import AutoModelForCausalLM

    engine = make_engine(training={"max_norm": 1e9})
    batch = with_old(make_batch(), engine)
    recorded = gradients_of(engine)
    engine.update(batch, objective, (0.0, 0.0))
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    log_pi = model(batch["input_ids"]).logits.log_softmax(-1)
    logprob = log_pi.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    ratio = (logprob - logprob.detach()).exp()
    torch.where(batch["loss_mask"], -batch["loss_weight"] * ratio * batch["advantage"], 0.0).sum().backward()
    theirs = dict(model.named_parameters())
    ours = recorded[0]
    torch.testing.assert_close(
        ours["lm_head.weight" if "lm_head.weight" in ours else "tok_embeddings.weight"],
        theirs["model.embed_tokens.weight"].grad,
        atol=1e-6,
        rtol=1e-4,
    )
    for layer in range(2):
        for name, other in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            torch.testing.assert_close(
                ours[f"layers.{layer}.feed_forward.{name}.weight"],
                theirs[f"model.layers.{layer}.mlp.{other}.weight"].grad,
                atol=1e-6,
                rtol=1e-4,
            )
        torch.testing.assert_close(
            ours[f"layers.{layer}.attention.wo.weight"],
            theirs[f"model.layers.{layer}.self_attn.o_proj.weight"].grad,
            atol=1e-6,
            rtol=1e-4,
        )


def test_ratio_is_exactly_one_before_the_first_step(make_engine: Make, objective: Objective) -> None:
    engine = make_engine()
    metrics = engine.update(with_old(make_batch(), engine), objective, (0.1, 0.0))
    assert metrics["loss/approx_kl"][0] == 0.0
    assert metrics["kl/k3"][0] == 0.0


def test_scoring_changes_nothing(make_engine: Make, objective: Objective) -> None:
    results = []
    for times in (1, 3):
        engine = make_engine(with_reference=True)
        batch = with_old(make_batch(), engine)
        for _ in range(times):
            engine.score(batch)
            engine.frozen["reference"].score(batch)
        engine.update(batch, objective, (0.1, 0.0))
        results.append(dict(engine.weights()))
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_score_sees_the_weights_after_an_update(make_engine: Make, objective: Objective) -> None:
    engine = make_engine(with_reference=True)
    batch = with_old(make_batch(), engine)
    before = batch["old_logprob"]
    engine.update(batch, objective, (0.1, 0.0))
    assert (engine.score(batch)["logprob"] - before).abs().max() > 1e-3
    torch.testing.assert_close(engine.frozen["reference"].score(batch)["logprob"], before, atol=0, rtol=0)


def test_padding_changes_no_bit(make_engine: Make, objective: Objective) -> None:
    recorded = []
    for length in (40, 57):
        engine = make_engine()
        gradients = gradients_of(engine)
        engine.update(pad_columns(with_old(make_batch(), engine), length), objective, (0.1, 0.0))
        recorded.append(gradients[0])
    assert all(torch.equal(value, recorded[1][name]) for name, value in recorded[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 10_000])
def test_micro_batch_size_does_not_change_the_gradient(
    make_engine: Make, objective: Objective, tokens: int
) -> None:
    recorded, losses = [], []
    for budget in (120, tokens):
        engine = make_engine(training={"max_tokens_per_microbatch": budget, "max_norm": 1e9})
        gradients = gradients_of(engine)
        batch = with_old(make_batch(), engine)
        batch["old_logprob"] = batch["old_logprob"] - 0.1
        losses.append(engine.update(batch, objective, (0.1, 0.0)))
        recorded.append(gradients[0])
    assert_same_gradients(*recorded, atol=1e-6)
    assert losses[0]["loss/entropy"][1] == losses[1]["loss/entropy"][1]
    assert losses[0]["loss/entropy"][0] == pytest.approx(losses[1]["loss/entropy"][0], rel=1e-6)


@pytest.mark.parametrize("turns", [False, True])
def test_shared_prefixes_do_not_change_the_gradient(
    make_engine: Make, objective: Objective, turns: bool
) -> None:
    """The prompt of each group; with ``turns`` also a longer prefix of two of its rows."""
    recorded = []
    for separate in (False, True):
        engine = make_engine(training={"max_norm": 1e9})
        gradients = gradients_of(engine)
        batch = make_batch()
        if turns:
            for row, other, length in ((1, 3, 22), (2, 0, 15), (6, 4, 9)):
                batch["input_ids"][row, :length] = batch["input_ids"][other, :length]
        batch = with_old(batch, engine)
        if separate:
            batch["group_id"] = torch.arange(len(batch))
        metrics = engine.update(batch, objective, (0.1, 0.0))
        recorded.append((gradients[0], metrics["update/computed_tokens"][0]))
    assert_same_gradients(recorded[0][0], recorded[1][0], atol=1e-6)
    assert recorded[0][1] < recorded[1][1]


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "is_whole"), [("ppo_clip", False), ("clip_cov", True)])
def test_groups_are_split_if_the_loss_compares_no_rows(make_engine: Make, loss: str, is_whole: bool) -> None:
    tokens = []
    for budget in (1, 10_000):
        engine = make_engine(training={"max_tokens_per_microbatch": budget})
        metrics = engine.update(
            with_old(make_batch(), engine), Objective(loss=titanrl.build("loss", {"name": loss})), (0.0, 0.0)
        )
        tokens.append(metrics["update/computed_tokens"][0])
    assert (tokens[0] == tokens[1]) == is_whole


@pytest.mark.slow
def test_activation_checkpointing_does_not_change_the_gradient(
    make_engine: Make, objective: Objective
) -> None:
    recorded = []
    for mode in ("none", "selective", "full"):
        engine = make_engine(activation_checkpoint=ActivationCheckpoint(mode=mode))
        gradients = gradients_of(engine)
        engine.update(with_old(make_batch(), engine), objective, (0.1, 0.0))
        recorded.append(
            {name.replace("_checkpoint_wrapped_module.", ""): g for name, g in gradients[0].items()}
        )
    assert_same_gradients(recorded[0], recorded[1], atol=1e-7)
    assert_same_gradients(recorded[0], recorded[2], atol=1e-7)


@pytest.mark.slow
def test_bfloat16_compute_keeps_float32_masters(make_engine: Make, objective: Objective) -> None:
    engine = make_engine(training={"mixed_precision_param": "bfloat16"})
    exact = make_engine()
    batch = make_batch()
    gap = (engine.score(batch)["logprob"] - exact.score(batch)["logprob"]).abs()
    assert 0 < gap.max() < 0.1
    gradients = gradients_of(engine)
    metrics = engine.update(with_old(batch, engine), objective, (0.1, 0.0))
    assert metrics["loss/approx_kl"][0] == 0.0
    assert all(value.dtype == torch.float32 for value in gradients[0].values())
    assert all(value.dtype == torch.float32 for _, value in engine.weights())


@pytest.mark.slow
def test_update_raises_the_logprob_of_rewarded_tokens(make_engine: Make, objective: Objective) -> None:
    engine = make_engine()
    batch = make_batch()
    batch["advantage"] = batch["loss_mask"].float()
    before = engine.score(batch)["logprob"].sum()
    for _ in range(5):
        engine.update(with_old(batch, engine), objective, (0.0, 0.0))
    assert engine.score(batch)["logprob"].sum() > before + 10


def test_update_without_a_loss_token_is_skipped(make_engine: Make, objective: Objective) -> None:
    engine = make_engine()
    batch = with_old(make_batch(), engine)
    before = {name: value.clone() for name, value in engine.weights()}
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    metrics = engine.update(batch, objective, (0.1, 0.0))
    assert metrics["update/grad_norm"] == (0.0, 1.0)
    assert metrics["loss/entropy"] == (0.0, 0.0)
    assert metrics["update/skipped"] == (1.0, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())


def test_update_accepts_an_empty_batch(make_engine: Make, objective: Objective) -> None:
    engine = make_engine()
    metrics = engine.update(with_old(make_batch(), engine)[:0], objective, (0.1, 0.0))
    assert metrics["update/grad_norm"] == (0.0, 1.0)


def test_non_finite_gradient_is_skipped_and_counted(make_engine: Make, objective: Objective) -> None:
    engine = make_engine()
    batch = with_old(make_batch(), engine)
    before = {name: value.clone() for name, value in engine.weights()}
    broken = batch.copy()
    broken["advantage"] = torch.full_like(batch["advantage"], torch.nan)
    assert engine.update(broken, objective, (0.1, 0.0))["update/skipped"] == (1.0, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())
    assert engine.update(batch, objective, (0.1, 0.0))["update/skipped"] == (0.0, 1.0)


def test_weights_carry_hugging_face_names_and_values(make_engine: Make, model_folder: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(model_folder / "model.safetensors")
    streamed = dict(make_engine().weights())
    assert streamed.keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in streamed.items())


def test_reference_may_be_another_model(tmp_path: Path, make_engine: Make) -> None:
    other = tiny.create(tmp_path / "other", seed=1, scale=0.2)
    engine = make_engine(frozen={"reference": FrozenModel(str(other))})
    batch = make_batch()
    expected = make_engine(model=str(other)).score(batch)["logprob"]
    assert torch.equal(engine.frozen["reference"].score(batch)["logprob"], expected)
    assert (engine.score(batch)["logprob"] - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"seq_len": 4096}}, r"\[training\] seq_len must be at most 256"),
        ({"parallelism": Parallelism(tensor_parallel_degree=2)}, r"degrees must multiply to the 1 processes"),
        ({"model": "no/such/folder"}, r"\[model\] path has no config.json"),
    ],
)
def test_impossible_settings_are_refused(make_engine: Make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(**changes)


def test_folder_without_the_weights_it_promises_is_refused(tmp_path: Path) -> None:
    folder = tiny.create(tmp_path / "model", layers=1)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    with pytest.raises(ConfigError, match=r"its config.json says: model\.layers\.1.*got none"):
        Engine(EngineConfig(model=str(folder), training=Training(seq_len=48)))
