"""Masking, loss weights, group statistics and metrics, in cases that need more than one component or none.

Cases of a single component are in tests/golden.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.algorithm.test_compute_advantages import algorithm, batch_of
from titanrl import PolicyOutputs
from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.metrics import add, means
from titanrl.algorithm.objective import Objective
from titanrl.ops.masked import whiten
from titanrl.ops.quantile import quantile


def aggregate(name: str, mask: torch.Tensor, loss: torch.Tensor, **fields: Any) -> float:
    group_id = torch.arange(len(mask))
    weight = titanrl.build("aggregation", {"name": name, **fields})(mask, group_id)
    return float((weight * loss).sum())


# ----------------------------------------------------- masks, padding, truncation


@pytest.mark.parametrize("layout", ["one row", "two rows", "an empty row"])
def test_whitening_statistics_do_not_depend_on_the_layout(layout: str) -> None:
    values, mask = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(1, 4, dtype=torch.bool)
    if layout == "two rows":
        values, mask = values.view(2, 2), mask.view(2, 2)
    if layout == "an empty row":
        values = torch.cat([values, torch.full((1, 4), math.nan)])
        mask = torch.cat([mask, ~mask])
    expected = (torch.arange(4.0) - 1.5) / torch.tensor([1.0, 2.0, 3.0, 4.0]).std()
    torch.testing.assert_close(whiten(values, mask)[mask], expected)
    assert not whiten(values, mask)[~mask].any()


@pytest.mark.parametrize("name", titanrl.names("aggregation"))
def test_aggregation_excludes_masked_tokens(name: str) -> None:
    table = {"length": 2} if name == "constant_length" else {}
    mask = torch.tensor([[True, True, False]])
    expected = 2.0 if name in ("token_sum", "sequence_sum") else 1.0
    assert aggregate(name, mask, torch.tensor([[1.0, 1.0, 9.0]]), **table) == pytest.approx(expected)


def test_finish_reason_correction_drops_rollouts_and_not_turns() -> None:
    """Row 0 has two turns and ended by itself, row 1 has one and was cut."""
    batch = batch_of(
        loss_mask=[[True, True, False, True], [True, True, True, False]],
        group_id=[0, 0],
        finish_reason=torch.tensor([0, 1], dtype=torch.int8),
    )
    keep = titanrl.build("correction", {"name": "finish_reason"})(batch).keep
    assert keep.any(-1).tolist() == [True, False]


def test_masking_truncated_responses_keeps_lengths_and_group_statistics() -> None:
    """Reported as TRL #3476: lengths were read from the mask of the loss."""
    mask = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    batch = batch_of(
        loss_mask=mask,
        group_id=[0, 0],
        reward=[1.0, 0.0],
        finish_reason=torch.tensor([0, 1], dtype=torch.int8),
    )
    chosen = algorithm(advantage={"name": "grpo", "std": "none"}, correction=[{"name": "finish_reason"}])
    got, metrics = compute_advantages(batch, chosen)
    assert batch["loss_mask"].sum(1).tolist() == [3, 5], "the caller's batch keeps its lengths"
    assert got["loss_mask"].sum(1).tolist() == [3, 0]
    assert got["advantage"][0, 0] == 0.5, "the truncated row is still in its group's mean"
    assert not got["advantage"][1].any()
    assert metrics["correction/selected_fraction"] == pytest.approx(3 / 8)
    assert not got["correction_weight"][1].any()
    assert got["correction_weight"][0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("denominator", ["trainable", "kept"])
def test_selected_rows_alone_are_in_the_denominator(denominator: str) -> None:
    """Lengths 10, 15 and 5, loss 1 per token, the third row truncated: 25 / 25, not 25 / 30."""
    mask = torch.arange(15).unsqueeze(0) < torch.tensor([[10], [15], [5]])
    batch = batch_of(loss_mask=mask, group_id=[0, 0, 0], reward=[1.0, 0.0, 0.5], finish_reason=[0, 0, 1])
    chosen = algorithm(
        advantage={"name": "grpo"}, correction=[{"name": "finish_reason"}], denominator=denominator
    )
    weight = compute_loss_weights(compute_advantages(batch, chosen)[0], chosen)["loss_weight"]
    assert float(weight.sum()) == pytest.approx(1.0)
    assert not weight[2].any()


def test_selection_precedes_importance_corrections() -> None:
    """The ratios of dropped rows enter neither the metrics nor the statistics of a correction."""
    batch = batch_of(
        loss_mask=[[True, True], [True, True]],
        group_id=[0, 0],
        reward=[1.0, 0.0],
        finish_reason=[0, 1],
        old_logprob=[[-1.0, -1.0], [-1.0, -1.0]],
        sampler_logprob=[[-1.0, -1.0], [-9.0, -9.0]],
    )
    chain = [{"name": "tis"}, {"name": "finish_reason"}]
    got, metrics = compute_advantages(batch, algorithm(advantage={"name": "grpo"}, correction=chain))
    assert metrics["correction/ratio_max"] == 1.0
    assert metrics["correction/effective_sample_size"] == 1.0
    assert metrics["sample/logprob_diff"] == 4.0, "the mismatch is measured on all sampled tokens"
    assert got["keep"].tolist() == [[True, True], [False, False]]


def test_selection_drops_both_rows_of_a_pair() -> None:
    batch = batch_of(
        loss_mask=[[True, True]] * 4, group_id=[0, 0, 1, 1], reward=[1.0, 0.0] * 2, finish_reason=[0, 1, 0, 0]
    )
    chosen = algorithm(loss=titanrl.build("loss", {"name": "dpo"}), correction=[{"name": "finish_reason"}])
    got, _ = compute_advantages(batch, chosen)
    assert got["loss_mask"].any(-1).tolist() == [False, False, True, True]


# -------------------------------------------------------------------- loss weights


def test_token_mean_clamps_the_token_count_from_below() -> None:
    hundred = torch.ones(10, 10, dtype=torch.bool)
    assert aggregate("token_mean", hundred, torch.full((10, 10), 0.5)) == pytest.approx(0.5)
    assert aggregate("token_mean", ~hundred, torch.full((10, 10), 0.5)) == 0.0


def test_token_mean_of_a_split_row_has_one_denominator() -> None:
    mask, loss = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[1.0, 1.0, 1.0, 5.0]])
    weight = titanrl.build("aggregation", {"name": "token_mean"})(mask, torch.zeros(1, dtype=torch.int64))
    halves = [float((w * x).sum()) for w, x in zip(weight.split(2, 1), loss.split(2, 1), strict=True)]
    assert sum(halves) == pytest.approx(2.0)


def test_sequence_mean_excludes_empty_pairs() -> None:
    """Two preference pairs, one of them padding: -log sigmoid(0) of the live pair is the whole loss."""
    mask = torch.tensor([[True, True], [True, False], [False, False], [False, False]])
    pair_loss = torch.full((4, 2), math.log(2))
    assert aggregate("sequence_mean", mask, pair_loss) == pytest.approx(math.log(2))


def test_metrics_of_micro_batches_add_to_those_of_the_batch() -> None:
    mask, loss = (
        torch.tensor([[True, False, False], [True, True, True]]),
        torch.tensor([[3.0] * 3, [1.0] * 3]),
    )
    weight = titanrl.build("aggregation", {"name": "token_mean"})(mask, torch.tensor([0, 1]))
    parts = [
        {
            "loss/total": (float((weight[i] * loss[i]).sum()), 0.5),
            "token": (float((mask * loss)[i].sum()), float(mask[i].sum())),
        }
        for i in range(2)
    ]
    total = add(parts[0], parts[1])
    assert total["loss/total"][0] == pytest.approx(1.5)
    assert means(total)["token"] == pytest.approx(1.5)
    assert total["token"][1] == 4


# -------------------------------------------------------------------------- groups


def test_grpo_centers_every_group() -> None:
    reward = torch.tensor([1.0, 0.0, 3.0, 1.0, 5.0, 2.0, 7.0, 3.0])
    batch = batch_of(loss_mask=[[True]] * 8, group_id=[0, 0, 1, 1, 2, 2, 3, 3], reward=reward)
    got = titanrl.build("advantage", {"name": "grpo", "std": "none"})(batch).advantage
    assert got[:, 0].tolist() == [0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0]


@pytest.mark.parametrize("n", [3, 7, 8, 16])
@pytest.mark.parametrize("value", [0.1, 0.35, 0.7, 1 / 3])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-6])
def test_grpo_is_exactly_zero_for_equal_rewards(n: int, value: float, eps: float) -> None:
    """Float32 residue of a mean or standard deviation is not amplified (NeMo-RL #4161)."""
    batch = batch_of(loss_mask=[[True]] * n, group_id=[0] * n, reward=[value] * n)
    for std in ("group", "batch", "leave_one_out", "none"):
        for baseline in ("mean", "leave_one_out"):
            table = {"name": "grpo", "std": std, "baseline": baseline, "eps": eps}
            assert not titanrl.build("advantage", table)(batch).advantage.any()


def test_grpo_keeps_a_standard_deviation_near_float_precision() -> None:
    reward = [0.35, 0.35, 0.35, 0.35 + 3e-8]
    assert len(set(torch.tensor(reward).tolist())) == 2
    batch = batch_of(loss_mask=[[True]] * 4, group_id=[0] * 4, reward=reward)
    got = titanrl.build("advantage", {"name": "grpo", "eps": 0.0})(batch).advantage[:, 0]
    torch.testing.assert_close(got, torch.tensor([-0.5, -0.5, -0.5, 1.5]))


def test_group_advantages_do_not_depend_on_how_ranks_split_a_group() -> None:
    """Gathering rank by rank interleaves the groups: ranks hold rows 0-1 and 2-3 of each group of four."""
    one = batch_of(
        loss_mask=[[True, True]] * 8,
        group_id=[0] * 4 + [1] * 4,
        reward=[0.1, 0.7, 0.35, 1.0, 0.0, 0.3, 0.35, 0.9],
    )
    gathered = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
    for name in ("grpo", "rloo", "opo", "max_rl", "soft_baseline"):
        estimator = titanrl.build("advantage", {"name": name})
        expected = estimator(one).advantage[gathered]
        torch.testing.assert_close(estimator(one[gathered]).advantage, expected, rtol=1e-6, atol=1e-7)


def test_zero_std_group_keeps_its_kl_gradient_and_its_tokens() -> None:
    """By design: its advantage is 0, but its KL gradient and its tokens count (TRL #7068)."""
    chosen = algorithm(advantage={"name": "grpo"}, kl={"placement": "loss", "coefficient": 0.1})
    batch = batch_of(
        loss_mask=[[True]] * 4,
        group_id=[0, 0, 1, 1],
        reward=[0.35, 0.35, 1.0, 0.0],
        old_logprob=torch.full((4, 1), -1.0),
        ref_logprob=torch.full((4, 1), -1.5),
    )
    got, _ = compute_advantages(batch, chosen)
    weighed = compute_loss_weights(got, chosen)
    assert not weighed["advantage"][:2].any()
    assert weighed["loss_weight"].flatten().tolist() == [0.25] * 4
    assert chosen.kl is not None
    objective = Objective(loss=chosen.loss, kl=chosen.kl.estimator)
    logprob = torch.full((4, 1), -1.0, requires_grad=True)
    total, _ = objective(PolicyOutputs(logprob), weighed, torch.tensor([0.1, 0.0]))
    total.backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad[:2], torch.full((2, 1), 0.25 * 0.1))


# ------------------------------------------------------------------------- metrics


def test_token_metrics_are_reduced_as_sums_and_counts() -> None:
    ranks = [{"loss/entropy": (2 * 1.0, 2.0)}, {"loss/entropy": (8 * 0.25, 8.0)}]
    assert means(add(*ranks))["loss/entropy"] == pytest.approx(0.4)


@pytest.mark.slow
def test_entropy_quantile_ignores_padding_and_takes_more_than_2_24_tokens() -> None:
    entropy = torch.arange(10.0)
    mask = torch.arange(10) < 5
    assert float(quantile(entropy[mask], 1 - 0.2)) == pytest.approx(3.2)
    many = torch.zeros(2**24 + 1)
    many[-1] = 1.0
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(many, 0.8)
    assert float(quantile(many, 0.8)) == 0.0


def test_metrics_of_empty_selections_are_absent() -> None:
    batch = batch_of(
        loss_mask=torch.zeros(2, 3, dtype=torch.bool),
        group_id=[0, 0],
        reward=[math.nan, math.nan],
        old_logprob=torch.zeros(2, 3),
        sampler_logprob=torch.zeros(2, 3),
    )
    got, metrics = compute_advantages(
        batch, algorithm(advantage={"name": "grpo"}, correction=[{"name": "tis"}])
    )
    assert not got["advantage"].any()
    assert not {"advantage/mean", "advantage/frac_zero_std", "sample/logprob_diff"} & set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_reward_group_std_is_computed_within_groups() -> None:
    batch = batch_of(
        loss_mask=[[True]] * 8, group_id=[0] * 4 + [1] * 4, reward=[1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    )
    _, metrics = compute_advantages(batch, algorithm(advantage={"name": "grpo"}))
    assert metrics["reward/group_std"] == pytest.approx(0.288675, abs=1e-6)
    assert metrics["advantage/frac_zero_std"] == 0.5


def test_stored_metrics_are_plain_numbers() -> None:
    """A tensor would keep a graph, or a device, alive."""
    batch: TensorDict = batch_of(loss_mask=[[True]] * 2, group_id=[0, 0], reward=[1.0, 0.0])
    _, metrics = compute_advantages(batch, algorithm(advantage={"name": "grpo"}))
    assert metrics
    assert all(type(value) is float for value in metrics.values())
