"""The pure stages: filters, token rewards, KL placements, chained corrections, denominators, metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.laws.estimate_batches import Shape, scored_batch
from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.reward_scaling import RewardScaling
from titanrl.algorithm.table import Algorithm, KLTerm
from titanrl.registry.decode import decode


def algorithm(*, kl: dict[str, Any] | None = None, **parts: Any) -> Algorithm:
    """Returns an algorithm of plain parts; components are given as tables."""
    built: dict[str, Any] = {
        "loss": titanrl.build("loss", {"name": "reinforce"}),
        "aggregation": titanrl.build("aggregation", {"name": "token_mean"}),
    }
    for key, table in parts.items():
        if key == "reward_scaling":
            built[key] = decode(RewardScaling, table)
        elif key in ("correction", "filter"):
            built[key] = tuple(titanrl.build(key, each) for each in table)
        else:
            built[key] = titanrl.build(key, table) if isinstance(table, dict) else table
    if kl is not None:
        estimator = titanrl.build("kl", {"name": kl.get("name", "k1")})
        built["kl"] = KLTerm(estimator=estimator, placement=kl["placement"], coefficient=kl["coefficient"])
    return Algorithm(**built)


def batch_of(**keys: Any) -> TensorDict:
    tensors = {
        key: value if isinstance(value, torch.Tensor) else torch.tensor(value) for key, value in keys.items()
    }
    return TensorDict(tensors, batch_size=[len(tensors["loss_mask"])])


KL_BATCH = {
    "loss_mask": [[True, True, False, True], [False, True, True, False]],
    "group_id": [0, 0],
    "reward": [1.0, 0.0],
    "old_logprob": [[-1.0, -2.0, math.nan, -0.5], [math.nan, -1.0, -1.0, math.nan]],
    "ref_logprob": [[-1.5, -1.0, 7.0, -1.5], [math.nan, -1.0, -3.0, 1e9]],
}
"""k1 of the loss tokens: .5, -1, 1 and 0, 2."""


def test_reward_is_placed_on_the_last_response_token() -> None:
    batch, _ = compute_advantages(
        batch_of(**KL_BATCH), algorithm(advantage={"name": "reinforce_plus_plus", "whiten": False})
    )
    assert batch["token_reward"].tolist() == [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    assert batch["advantage"].tolist() == [[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]


def test_kl_in_the_reward_is_per_token_and_sums_to_the_sequence_penalty() -> None:
    batch, metrics = compute_advantages(
        batch_of(**KL_BATCH),
        algorithm(
            advantage={"name": "rloo", "source": "token_reward"},
            kl={"placement": "reward", "coefficient": 0.1},
        ),
    )
    torch.testing.assert_close(
        batch["token_reward"], torch.tensor([[-0.05, 0.1, 0.0, 0.9], [0.0, 0.0, -0.2, 0.0]])
    )
    # Scores .95 and -.2.
    torch.testing.assert_close(batch["advantage"][0], torch.tensor([1.15, 1.15, 0.0, 1.15]))
    assert metrics["kl/value"] == pytest.approx((0.5 - 1 + 1 + 0 + 2) / 5)


def test_kl_is_subtracted_after_reward_scaling() -> None:
    chosen = algorithm(
        advantage={"name": "rloo", "source": "token_reward"},
        kl={"placement": "reward", "coefficient": 0.1},
        reward_scaling={"clip": 1.2},
    )
    raw = batch_of(**KL_BATCH)
    batch, metrics = compute_advantages(raw, chosen)
    # Rewards 1 and 0: std sqrt(1/2), 1 / 0.7071 = 1.414, clipped.
    torch.testing.assert_close(batch["reward"], torch.tensor([1.2, 0.0]))
    torch.testing.assert_close(batch["token_reward"][0], torch.tensor([-0.05, 0.1, 0.0, 1.1]))
    assert raw["reward"].tolist() == [1.0, 0.0]
    assert metrics["reward/scale"] == pytest.approx(math.sqrt(0.5))
    assert metrics["reward/clipped_fraction"] == 0.5
    assert metrics["reward/kl_penalized"] == pytest.approx((1.2 - 0.05 + 0 - 0.2) / 2)


def test_filters_read_raw_rewards_and_reward_scaling_counts_dropped_rows() -> None:
    rows = {"loss_mask": [[True]] * 4, "group_id": [0, 0, 1, 1], "reward": [1.0, 2.0, 4.0, 4.0]}
    batch, metrics = compute_advantages(
        batch_of(**rows, baseline_reward=[1.0, 1.0, 4.0, 4.0]),
        algorithm(
            advantage={"name": "remax"}, filter=[{"name": "zero_variance"}], reward_scaling={"center": True}
        ),
    )
    std = math.sqrt((1.75**2 + 0.75**2 + 2 * 1.25**2) / 3)
    wanted = torch.tensor([-1.75 / std, -0.75 / std])
    torch.testing.assert_close(batch["reward"], wanted)
    # The greedy answer's reward is on the same scale: 0 and 1 apart.
    torch.testing.assert_close(batch["advantage"], torch.tensor([[0.0], [1.0]]) / std)
    assert metrics["reward/group_std"] == pytest.approx(math.sqrt(0.5) / 2)


def test_kl_in_the_advantage_comes_after_whitening() -> None:
    parts: dict[str, Any] = {"advantage": {"name": "reinforce_plus_plus_baseline"}}
    plain, _ = compute_advantages(batch_of(**KL_BATCH), algorithm(**parts))
    batch, metrics = compute_advantages(
        batch_of(**KL_BATCH), algorithm(**parts, kl={"placement": "advantage", "coefficient": 0.1})
    )
    penalty = torch.tensor([[0.05, -0.1, 0.0, 0.1], [0.0, 0.0, 0.2, 0.0]])
    torch.testing.assert_close(batch["advantage"], plain["advantage"] - penalty)
    assert "token_reward" not in batch.keys()  # noqa: SIM118
    assert metrics["kl/value"] == pytest.approx(0.5)


def test_kl_in_the_loss_does_not_change_advantages() -> None:
    parts: dict[str, Any] = {"advantage": {"name": "rloo"}}
    plain, metrics = compute_advantages(batch_of(**KL_BATCH), algorithm(**parts))
    batch, with_kl = compute_advantages(
        batch_of(**KL_BATCH), algorithm(**parts, kl={"placement": "loss", "coefficient": 0.1})
    )
    assert torch.equal(batch["advantage"], plain["advantage"])
    assert with_kl == metrics


def test_kl_penalty_uses_the_controllers_current_coefficient() -> None:
    controlled = algorithm(
        advantage={"name": "rloo", "source": "token_reward"}, kl={"placement": "reward", "coefficient": 0.0}
    )
    assert controlled.kl is not None
    assert controlled.kl.controller is not None
    controlled.kl.controller.coefficient = 0.5
    batch, _ = compute_advantages(batch_of(**KL_BATCH), controlled)
    assert batch["token_reward"][1].tolist() == [0.0, 0.0, -1.0, 0.0]


def test_row_must_pass_every_filter_and_zero_std_groups_are_counted_before() -> None:
    batch = batch_of(
        loss_mask=[[True]] * 6, group_id=[5, 5, 2, 2, 9, 9], reward=[1.0, 0.0, 1.0, 1.0, 0.25, 0.0]
    )
    got, metrics = compute_advantages(
        batch,
        algorithm(
            advantage={"name": "rloo"},
            filter=[{"name": "zero_variance"}, {"name": "reward_range", "low": 0.2}],
        ),
    )
    assert got["group_id"].tolist() == [5, 5]
    assert got["advantage"].tolist() == [[1.0], [-1.0]]
    assert metrics["filter/kept_fraction"] == pytest.approx(1 / 3)
    assert metrics["advantage/frac_zero_std"] == pytest.approx(1 / 3)


def test_rows_whose_baseline_is_missing_are_unscored() -> None:
    keys = {"reward": [1.0, 0.0, 1.0], "group_id": [0, 0, 1], "baseline_reward": [0.5, 0.5, math.nan]}
    batch = batch_of(loss_mask=[[True] * 2] * 3, **keys)
    result, _ = compute_advantages(batch, algorithm(advantage={"name": "remax"}))
    assert result["group_id"].tolist() == [0, 0]
    assert result["advantage"].tolist() == [[0.5, 0.5], [-0.5, -0.5]]


def test_filters_that_drop_every_row_give_an_empty_batch() -> None:
    batch = scored_batch(Shape((2, 3), 4, 0, 0.8))
    batch["reward"] = torch.full((5,), 0.35)
    got, metrics = compute_advantages(
        batch,
        algorithm(
            advantage={"name": "gae"},
            filter=[{"name": "zero_variance"}],
            correction=[{"name": "tis"}],
            kl={"placement": "reward", "coefficient": 0.1},
        ),
    )
    assert len(got) == 0
    assert metrics["filter/kept_fraction"] == 0
    assert metrics["advantage/frac_zero_std"] == 1
    assert all(math.isfinite(value) for value in metrics.values())


def test_unscored_rows_leave_group_statistics_denominators_and_the_loss() -> None:
    """The batch without the unscored row gives the same advantages and weights."""
    keys = {"reward": [1.0, math.nan, 0.0, 1.0], "group_id": [0, 0, 0, 1]}
    batch = batch_of(loss_mask=[[True] * 2, [True] * 2, [True, False], [True] * 2], **keys)
    table = algorithm(advantage={"name": "grpo"})
    whole, _ = compute_advantages(batch, table)
    scored, _ = compute_advantages(batch[[0, 2, 3]], table)
    for key in ("advantage", "loss_mask", "reward"):
        assert torch.equal(whole[key], scored[key])
    weights = [compute_loss_weights(each, table)["loss_weight"] for each in (whole, scored)]
    assert torch.equal(*weights)
    assert float(weights[0].sum()) == pytest.approx(1.0)


def test_filters_read_the_raw_reward_of_their_key() -> None:
    batch = batch_of(loss_mask=[[True]] * 4, group_id=[0, 0, 1, 1], reward=[1.0, 0.1, 1.0, 0.8])
    batch["rewards"] = TensorDict({"accuracy": torch.tensor([1.0, 0.0, 1.0, 1.0])}, batch_size=[4])
    got, _ = compute_advantages(
        batch, algorithm(advantage={"name": "grpo"}, filter=[{"name": "zero_variance", "key": "accuracy"}])
    )
    assert got["group_id"].tolist() == [0, 0]


CORRECTED = {
    "loss_mask": [[True, True, True], [True, True, False]],
    "group_id": [0, 0],
    "reward": [1.0, 0.0],
    "old_logprob": [[-1.0, -1.0, -1.0], [-1.0, -1.0, math.nan]],
    "sampler_logprob": [[-1.5, -1.0, -9.0], [-1.0, -1.25, 3.0]],
}
"""Log-ratios .5, 0, 8 and 0, .25."""


def test_corrections_multiply_weights_and_intersect_masks() -> None:
    chain = [{"name": "tis", "cap": 1.2}, {"name": "icepop", "low": 0.0, "high": 2.0}, {"name": "none"}]
    batch, metrics = compute_advantages(
        batch_of(**CORRECTED), algorithm(advantage={"name": "rloo"}, correction=chain)
    )
    half, quarter = math.exp(0.5), math.exp(0.25)
    expected = torch.tensor([[1.2 * half, 1.0, 0.0], [1.0, 1.2 * quarter, 0.0]])
    torch.testing.assert_close(batch["correction_weight"], expected)
    assert batch["keep"].tolist() == [[True, True, False], [True, True, False]]
    w = expected[batch["loss_mask"]].double()
    assert metrics["correction/dropped_fraction"] == pytest.approx(0.2)
    assert metrics["correction/effective_sample_size"] == pytest.approx(
        float(w.sum() ** 2 / (5 * (w**2).sum()))
    )
    assert metrics["correction/ratio_max"] == pytest.approx(math.exp(8), rel=1e-5)
    assert metrics["sample/logprob_diff"] == pytest.approx(8.75 / 5)


def test_correction_reads_the_advantage_of_the_same_stage() -> None:
    batch = batch_of(**CORRECTED)
    batch["sampler_logprob"] = batch["sampler_logprob"] + 1.0  # Every row is 1 nat more off.
    got, _ = compute_advantages(
        batch,
        algorithm(advantage={"name": "rloo"}, correction=[{"name": "off_policy_mask", "threshold": 0.5}]),
    )
    assert got["keep"].any(-1).tolist() == [True, False], "only the row of negative advantage goes"


@pytest.mark.parametrize(("denominator", "share"), [("trainable", 1 / 5), ("kept", 1 / 4)])
def test_denominators_after_rejection(denominator: str, share: float) -> None:
    """Trainable: rejecting tokens shrinks the step. Kept: what remains is scaled up again."""
    chosen = algorithm(
        advantage={"name": "rloo"}, correction=[{"name": "icepop", "high": 2.0}], denominator=denominator
    )
    batch, _ = compute_advantages(batch_of(**CORRECTED), chosen)
    weight = compute_loss_weights(batch, chosen)["loss_weight"]
    torch.testing.assert_close(weight[batch["keep"]], torch.full((4,), share))
    dropped = batch["loss_mask"] & ~batch["keep"]
    assert weight[dropped].tolist() == pytest.approx([share if denominator == "trainable" else 0.0])
    assert not (weight * batch["correction_weight"])[dropped].any()


def test_compute_loss_weights_normalizes_over_the_given_rows() -> None:
    batch = scored_batch(Shape((2, 2), 5, 1, 0.8))
    got = compute_loss_weights(batch, algorithm(aggregation={"name": "sequence_mean"}))
    assert float(got["loss_weight"].sum()) == pytest.approx(1.0)
    assert "loss_weight" not in batch.keys()  # noqa: SIM118


def test_explained_variance_is_absent_without_variance_of_returns() -> None:
    batch = scored_batch(Shape((2, 2), 6, 3, 0.9)).exclude("token_reward")
    chosen = algorithm(advantage={"name": "gae", "gamma": 0.9, "whiten": False})
    got, metrics = compute_advantages(batch, chosen)
    mask = got["loss_mask"]
    error = (got["returns"] - got["value"])[mask].double()
    expected = 1 - error.var() / got["returns"][mask].double().var()
    assert metrics["critic/explained_variance"] == pytest.approx(float(expected))

    flat = batch.copy().update({"reward": torch.zeros(4), "value": torch.zeros_like(batch["value"])})
    assert "critic/explained_variance" not in compute_advantages(flat, chosen)[1]


def test_compute_advantages_does_not_modify_its_input() -> None:
    batch = scored_batch(Shape((3, 2), 5, 2, 0.8))
    del batch["advantage"]
    before, keys = batch.clone(), set(batch.keys(True))
    chosen = algorithm(
        advantage={"name": "gae"},
        correction=[{"name": "tis"}, {"name": "top_entropy"}],
        kl={"placement": "reward", "coefficient": 0.1},
        denominator="kept",
    )
    got, _ = compute_advantages(batch.lock_(), chosen)
    compute_loss_weights(got.lock_(), chosen)
    assert set(batch.keys(True)) == keys
    assert (batch == before).all()
    assert "loss_weight" not in got.keys()  # noqa: SIM118


def test_metrics_do_not_depend_on_the_order_of_rows() -> None:
    batch = scored_batch(Shape((3, 1, 4), 5, 2, 0.8))
    chosen = algorithm(
        advantage={"name": "gae"}, correction=[{"name": "tis"}], filter=[{"name": "reward_range"}]
    )
    _, metrics = compute_advantages(batch, chosen)
    _, shuffled = compute_advantages(batch[torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])], chosen)
    assert shuffled == pytest.approx(metrics, rel=1e-5, abs=1e-6)  # The mean of whitened numbers is near 0.
