"""Load, forward pass and export of a folder agree with transformers: logits, names, values, tied weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file

from titanrl.engine import Engine
from titanrl.models import tiny

Make = Callable[..., Engine]
Family = Literal["llama", "qwen3", "qwen3_moe", "deepseek_v3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("llama", True),
        ("llama", False),
        ("qwen3", True),
        ("qwen3", False),
        ("qwen3_moe", True),
        ("qwen3_moe", False),
        ("deepseek_v3", False),
    ],
)
def test_export_of_an_imported_model_keeps_its_weights(
    tmp_path: Path, make_engine: Make, family: Family, tied: bool
) -> None:
    """11 layers and 12 experts, because in order of names number 10 comes before number 2."""
    from transformers import AutoModelForCausalLM

    folder = tiny.create(tmp_path / "model", model_type=family, layers=11, experts=12, tied=tied, scale=0.2)
    engine = make_engine(model=str(folder))
    tokens = torch.randint(4, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    with engine.inference() as (model,):
        logits = model(tokens)
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
    torch.testing.assert_close(logits, theirs, atol=4e-5, rtol=1e-5)

    stored = load_file(folder / "model.safetensors")
    sent = dict(engine.weights())
    engine.export(tmp_path / "exported")
    written = load_file(tmp_path / "exported" / "model.safetensors")
    for actual in (sent, written):
        assert actual.keys() == stored.keys()
        assert all(torch.equal(actual[name], value) for name, value in stored.items())
        assert all(actual[name].dtype == value.dtype for name, value in stored.items())
    before, after = (
        json.loads((each / "config.json").read_text()) for each in (folder, tmp_path / "exported")
    )
    assert before == after
    assert after["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in written) is not tied
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(exported(tokens).logits, theirs)
    assert (tmp_path / "exported" / "tokenizer.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_experts_learn(tmp_path: Path, make_engine: Make, family: Family) -> None:
    """Router and experts have the gradients of transformers' model."""
    from transformers import AutoModelForCausalLM

    from tests.unit.engine.conftest import full, make_batch, with_old
    from titanrl import build
    from titanrl.algorithm.objective import Objective

    folder = tiny.create(tmp_path / "model", model_type=family, tied=False, scale=0.2)
    engine = make_engine(model=str(folder), training={"max_norm": 1e9})
    batch = with_old(make_batch(), engine)
    recorded: dict[str, torch.Tensor] = {}
    (optimizer,) = engine.policy.optimizers.optimizers

    def keep(*_: object) -> None:
        (group,) = optimizer.param_groups
        pairs = zip(group["param_names"], group["params"], strict=True)
        recorded.update({name: full(parameter.grad) for name, parameter in pairs})

    optimizer.register_step_pre_hook(keep)
    engine.update(batch, Objective(loss=build("loss", {"name": "ppo_clip"})), (0.0, 0.0))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    log_pi = model(batch["input_ids"]).logits.log_softmax(-1)
    logprob = log_pi.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    ratio = (logprob - logprob.detach()).exp()
    torch.where(batch["loss_mask"], -batch["loss_weight"] * ratio * batch["advantage"], 0.0).sum().backward()
    theirs = dict(model.named_parameters())
    mlp, moe = "model.layers.1.mlp", "layers.1.moe"
    gate, up = theirs[f"{mlp}.experts.gate_up_proj"].grad.chunk(2, dim=1)
    pairs = {
        f"{moe}.router.gate.weight": theirs[f"{mlp}.gate.weight"].grad,
        f"{moe}.routed_experts.inner_experts.w1_EFD": gate,
        f"{moe}.routed_experts.inner_experts.w3_EFD": up,
        f"{moe}.routed_experts.inner_experts.w2_EDF": theirs[f"{mlp}.experts.down_proj"].grad,
    }
    for name, expected in pairs.items():
        assert float(expected.abs().max()) > 1e-4
        torch.testing.assert_close(recorded[name], expected, atol=1e-6, rtol=1e-4, msg=name)
