"""Faults that users of other frameworks reported, on losses, KL and the objective: those that no law and no
golden case already shows. The number is the fault's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import titanrl
from titanrl import PolicyOutputs
from titanrl.algorithm.metrics import add, means
from titanrl.algorithm.objective import Objective

NO_TERMS = torch.zeros(2)


def objective(loss: str = "sft", kl: dict[str, Any] | None = None, **options: bool) -> Objective:
    estimator = None if kl is None else titanrl.build("kl", kl)
    return Objective(loss=titanrl.build("loss", {"name": loss}), kl=estimator, **options)


def mask_of(*lengths: int, width: int | None = None) -> torch.Tensor:
    """Right-padded rows with the given numbers of trainable tokens."""
    return torch.arange(width or max(lengths))[None] < torch.tensor(lengths)[:, None]


def kl_batch(log_ratio: list[float]) -> tuple[PolicyOutputs, dict[str, torch.Tensor]]:
    """One row on which nothing but the KL term acts: advantage 0, weight 1."""
    ratio = torch.tensor([log_ratio])
    logprob = torch.full_like(ratio, -1.0).requires_grad_()
    batch = {
        "loss_mask": torch.ones_like(ratio, dtype=torch.bool),
        "loss_weight": torch.ones_like(ratio),
        "advantage": torch.zeros_like(ratio),
        "ref_logprob": -1.0 - ratio,
    }
    return PolicyOutputs(logprob=logprob), batch


# ------------------------------------------------------------------------------------- 2: KL


def test_k2_01_and_k2_16_the_kl_term_is_added_once() -> None:
    policy = PolicyOutputs(logprob=torch.tensor([[math.log(0.5)]]))
    batch = kl_batch([0.0])[1] | {"ref_logprob": torch.tensor([[math.log(0.25)]])}
    with_term, _ = objective("reinforce", {"name": "k1"})(policy, batch, torch.tensor([0.1, 0.0]))
    without, _ = objective("reinforce")(policy, batch, torch.tensor([0.1, 0.0]))
    assert with_term.item() == pytest.approx(0.069315, abs=1e-6)
    assert without.item() == 0


def test_k2_06_the_coefficient_moves_the_gradient() -> None:
    policy, batch = kl_batch([0.5])
    total, _ = objective("reinforce", {"name": "k3"})(policy, batch, torch.tensor([1.0, 0.0]))
    assert torch.autograd.grad(total, policy.logprob)[0].item() == pytest.approx(0.393469, abs=1e-6)


def test_k2_07_masked_places_are_replaced_before_exp() -> None:
    logprob = torch.tensor([[0.0, -1.0]], requires_grad=True)
    batch = {
        "loss_mask": torch.tensor([[True, False]]),
        "old_logprob": torch.tensor([[-0.1, -math.inf]]),
        "advantage": torch.tensor([[-1.0, 0.0]]),
    }
    result = titanrl.build("loss", {"name": "importance_sampling"})(PolicyOutputs(logprob=logprob), batch)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprob)
    assert gradient.tolist() == [[pytest.approx(1.105171, abs=1e-6), 0.0]]


def test_k2_10_the_metric_is_of_the_unclamped_ratio_and_the_gradient_is_cut_whole() -> None:
    policy, batch = kl_batch([25.0])
    batch["old_logprob"] = batch["ref_logprob"]
    kl = {"name": "k3", "output_clamp": math.inf}
    for weighted in (False, True):
        total, sums = objective("reinforce", kl, importance_weight=weighted)(
            policy, batch, torch.tensor([1.0, 0.0])
        )
        assert sums["kl/k3"][0].item() == pytest.approx(24.0)
        assert torch.autograd.grad(total, policy.logprob)[0].item() == 0


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_k2_11_jsd_at_its_ends_is_refused(beta: float) -> None:
    with pytest.raises(titanrl.ConfigError, match="beta"):
        titanrl.build("loss", {"name": "topk_distill", "direction": "jsd", "beta": beta})


def test_k2_12_distillation_does_not_depend_on_padding() -> None:
    teacher = torch.tensor([0.6, 0.4]).log().expand(1, 3, 2)
    student = torch.tensor([[[0.5, 0.5], [0.3, 0.7], [0.01, 0.99]]]).log()
    mask = torch.tensor([[True, True, False]])
    batch = {"loss_mask": mask, "loss_weight": mask / 2, "candidate_logprob": teacher}
    policy = PolicyOutputs(logprob=torch.zeros(1, 3), candidate_logprob=student)
    total, _ = objective("topk_distill")(policy, batch, NO_TERMS)
    first = 0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.5)
    second = 0.6 * math.log(0.6 / 0.3) + 0.4 * math.log(0.4 / 0.7)
    assert total.item() == pytest.approx((first + second) / 2, abs=1e-5)


def test_k2_15_the_importance_weight_of_the_kl_is_per_token() -> None:
    policy, batch = kl_batch([0.1, 0.2, 0.3])
    batch["old_logprob"] = policy.logprob.detach() - torch.tensor([[0.3, 0.1, 0.0]])
    total, _ = objective("reinforce", {"name": "k1"}, importance_weight=True)(
        policy, batch, torch.tensor([1.0, 0.0])
    )
    assert total.item() == pytest.approx(1.349859 * 0.1 + 1.105171 * 0.2 + 1.0 * 0.3, abs=1e-6)


# ------------------------------------------------------------- 3: aggregation over parts


def supervised(*rows: list[float]) -> tuple[PolicyOutputs, dict[str, torch.Tensor]]:
    """Rows whose supervised token losses are given."""
    mask = mask_of(*(len(row) for row in rows))
    logprob = torch.zeros(mask.shape)
    for i, row in enumerate(rows):
        logprob[i, : len(row)] = -torch.tensor(row)
    batch = {"loss_mask": mask, "group_id": torch.arange(len(rows))}
    return PolicyOutputs(logprob=logprob, entropy=-logprob), batch


def test_k3_01_k3_22_and_k14_07_micro_batches_add_to_the_step() -> None:
    policy, batch = supervised([3.0], [1.0, 1.0, 1.0])
    batch["loss_weight"] = titanrl.build("aggregation", {"name": "token_mean"})(
        batch["loss_mask"], batch["group_id"]
    )
    total, parts = 0.0, {}
    for i in range(2):
        policy_part = PolicyOutputs(logprob=policy.logprob[i : i + 1], entropy=policy.entropy[i : i + 1])
        batch_part = {key: value[i : i + 1] for key, value in batch.items()}
        loss, sums = objective()(policy_part, batch_part, NO_TERMS)
        total += loss.item()
        parts = add(parts, {name: (value.item(), count.item()) for name, (value, count) in sums.items()})
    assert total == pytest.approx(1.5)
    assert parts["loss/total"][0] == pytest.approx(1.5)
    assert means(parts)["loss/entropy"] == pytest.approx(1.5)
    assert parts["loss/entropy"][1] == 4


def test_k3_13_each_token_gradient_has_its_own_weight() -> None:
    logits = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], requires_grad=True)
    batch = {"loss_mask": torch.ones(1, 2, dtype=torch.bool), "loss_weight": torch.tensor([[1.0, 0.25]])}
    total, _ = objective()(PolicyOutputs(logprob=logits.log_softmax(-1)[..., 0]), batch, NO_TERMS)
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.flatten().tolist() == pytest.approx([-0.268941, 0.268941, -0.220199, 0.220199], abs=1e-6)


def test_k3_18_padding_does_not_lower_the_loss() -> None:
    policy, batch = supervised([2.0, 2.0])
    for width in (2, 4):
        mask = mask_of(2, width=width)
        logprob = torch.nn.functional.pad(policy.logprob, (0, width - 2))
        weight = titanrl.build("aggregation", {"name": "token_mean"})(mask, batch["group_id"])
        total, _ = objective()(
            PolicyOutputs(logprob=logprob), {"loss_mask": mask, "loss_weight": weight}, NO_TERMS
        )
        assert total.item() == pytest.approx(2.0)


@pytest.mark.parametrize("shape", [(2, 4), (2, 1)])
def test_k3_21_the_normaliser_is_not_the_loss_authors(shape: tuple[int, int]) -> None:
    def ones(policy: PolicyOutputs, batch: Any) -> titanrl.TokenLoss:
        return titanrl.TokenLoss(torch.ones(shape), {})

    policy, batch = supervised([1.0] * 4, [1.0])
    for name in ("token_mean", "sequence_mean"):
        weight = titanrl.build("aggregation", {"name": name})(batch["loss_mask"], batch["group_id"])
        total, _ = Objective(loss=ones)(policy, {**batch, "loss_weight": weight}, NO_TERMS)
        assert total.item() == pytest.approx(1.0)


# ----------------------------------------------------------------- 14 and 17: metrics, entropy


def test_k14_03_entropy_is_over_trainable_tokens() -> None:
    batch = {"loss_mask": mask_of(2, width=4), "loss_weight": mask_of(2, width=4).float()}
    policy = PolicyOutputs(logprob=torch.zeros(1, 4), entropy=torch.tensor([[1.0, 2.0, -1.0, math.nan]]))
    _, sums = objective()(policy, batch, NO_TERMS)
    total, count = sums["loss/entropy"]
    assert (total / count).item() == 1.5


def test_k17_03_a_positive_coefficient_raises_entropy() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)

    def entropy(z: torch.Tensor) -> torch.Tensor:
        return z.logsumexp(0) - (z.softmax(0) * z).sum()

    batch = {
        "loss_mask": torch.ones(1, 1, dtype=torch.bool),
        "loss_weight": torch.ones(1, 1),
        "advantage": torch.zeros(1, 1),
    }
    policy = PolicyOutputs(logprob=torch.zeros(1, 1), entropy=entropy(logits).view(1, 1))
    total, _ = objective("reinforce", entropy=True)(policy, batch, torch.tensor([0.0, 0.1]))
    (gradient,) = torch.autograd.grad(total, logits)
    assert total.item() == pytest.approx(-0.08324, abs=1e-5)
    assert entropy(logits - 10 * gradient).item() == pytest.approx(0.937685, abs=1e-5)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "table", "slope"),
    [
        (0.1, 1.0, {"name": "ppo_clip"}, -math.exp(0.1)),
        (0.5, 1.0, {"name": "ppo_clip"}, 0.0),
        (0.5, -1.0, {"name": "ppo_clip"}, math.exp(0.5)),
        (-0.5, -1.0, {"name": "ppo_clip"}, 0.0),
        (1.5, -1.0, {"name": "ppo_clip", "dual_clip": 3.0}, 0.0),
        (1.0, -1.0, {"name": "ppo_clip", "dual_clip": 3.0}, math.e),
        (0.5, 2.0, {"name": "cispo", "clip_high": 0.2}, -1.2 * 2.0),
        (0.5, 2.0, {"name": "gspo", "clip_high": 0.9}, -2.0 * math.exp(0.5)),
        (0.5, 2.0, {"name": "gspo", "clip_high": 0.2}, 0.0),
        (0.5, 2.0, {"name": "reinforce"}, -2.0),
    ],
)
def test_k17_gradient_of_one_token_by_hand(
    log_ratio: float, advantage: float, table: dict[str, Any], slope: float
) -> None:
    logprob = torch.tensor([[-1.0, -7.0]], requires_grad=True)
    batch = {
        "loss_mask": torch.tensor([[True, False]]),
        "old_logprob": torch.tensor([[-1.0 - log_ratio, math.nan]]),
        "advantage": torch.tensor([[advantage, math.nan]]),
    }
    loss = titanrl.build("loss", table)(PolicyOutputs(logprob=logprob), batch).loss
    (gradient,) = torch.autograd.grad(torch.where(batch["loss_mask"], loss, 0.0).sum(), logprob)
    assert gradient[0].tolist() == pytest.approx([slope, 0.0], rel=1e-5)
