"""WPO through the engine: the weight of a pair is the policy's own, and no gradient flows through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM

import titanrl
from tests.unit.engine.conftest import full
from titanrl.algorithm.objective import Objective
from titanrl.engine import Engine

BETA = 0.3


def pairs() -> TensorDict:
    """Returns two preference pairs of uneven lengths."""
    generator = torch.Generator().manual_seed(3)
    raw = torch.randint(4, 90, (4, 13), generator=generator)
    mask = torch.zeros(4, 12, dtype=torch.bool)
    for row, (prompt, length) in enumerate(((5, 6), (5, 3), (2, 4), (2, 8))):
        raw[row, : prompt + 1] = raw[row - row % 2, : prompt + 1]
        mask[row, prompt : prompt + length] = True
    weight = mask.float() / mask.sum(1, keepdim=True) / len(mask)
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": torch.tensor([0, 0, 1, 1]),
            "ref_logprob": -4 + torch.randn(4, 12, generator=generator),
            "loss_weight": weight,
        },
        batch_size=[4],
    )


def reference(folder: Path, batch: TensorDict) -> tuple[float, dict[str, torch.Tensor]]:
    """Returns the same loss and gradients by transformers and full softmax."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    log_pi = model(batch["input_ids"]).logits.log_softmax(-1)
    mask = batch["loss_mask"]
    logprob = log_pi.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    log_ratio = torch.where(mask, logprob - batch["ref_logprob"], 0.0).sum(1)
    relative = torch.where(mask, logprob - log_pi.exp().square().sum(-1).log(), 0.0)
    weight = (relative.sum(1) / mask.sum(1)).exp().detach()
    losses = -torch.nn.functional.logsigmoid(BETA * (log_ratio[0::2] - log_ratio[1::2]))
    loss = (losses * weight[0::2] * weight[1::2]).mean()
    loss.backward()
    return loss.item(), {
        "tok_embeddings.weight": model.get_input_embeddings().weight.grad,
        "norm.weight": model.model.norm.weight.grad,
    }


def test_wpo_equals_plain_torch_with_the_weight_held_constant(
    make_engine: Callable[..., Engine], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(training={"max_norm": 1e9})
    actual: dict[str, torch.Tensor] = {}

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                actual[name] = full(parameter.grad)

    for optimizer in engine.policy.optimizers.optimizers:
        optimizer.register_step_pre_hook(keep)
    loss = titanrl.build("loss", {"name": "dpo", "beta": BETA, "weighting": "wpo"})
    metrics = engine.update(pairs(), Objective(loss=loss), (0.0, 0.0))
    expected, gradients = reference(model_folder, pairs())
    assert metrics["loss/total"][0] == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-6, rtol=1e-4)
