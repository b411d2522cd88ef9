"""Degenerate cases of the advantage estimators, each computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl

NAN = math.nan


def advantage(name: str, batch: TensorDict, **fields: Any) -> list[float]:
    """Returns the advantage at each row's first column."""
    return titanrl.build("advantage", {"name": name, **fields})(batch).advantage[:, 0].tolist()


def batch_of(reward: list[float], group_id: list[int], **keys: torch.Tensor) -> TensorDict:
    rows = len(reward)
    plain = {
        "loss_mask": torch.ones(rows, 1, dtype=torch.bool),
        "group_id": torch.tensor(group_id),
        "reward": torch.tensor(reward),
    }
    return TensorDict(plain | keys, batch_size=[rows])


def test_leave_one_out_does_not_divide_where_the_other_scores_are_equal() -> None:
    batch = batch_of([1.0, 0.25, 0.25, 0.25, 0.8, 0.3], [0, 0, 0, 0, 1, 1])
    got = advantage("grpo", batch, std="leave_one_out", baseline="leave_one_out", eps=0.0)
    assert got[0] == 0.75, "the others are equal"
    # Others of row 1: 1, .25, .25 with mean .5 and std sqrt((.25 + .0625 + .0625) / 2).
    assert got[1:4] == pytest.approx([-0.25 / math.sqrt(0.1875)] * 3)
    assert got[4:] == pytest.approx([0.5, -0.5]), "two rows: one other score has no std"


def test_batch_std_counts_scored_rows_of_every_group() -> None:
    batch = batch_of([1.0, 0.0, 0.5, 0.5, NAN], [0, 0, 1, 1, 1])
    got = advantage("grpo", batch, std="batch", eps=0.0)
    std = math.sqrt((0.25 + 0.25) / 3)
    assert got == pytest.approx([0.5 / std, -0.5 / std, 0.0, 0.0, 0.0])


def test_a_group_left_with_one_scored_row_has_no_advantage() -> None:
    batch = batch_of([0.7, NAN, NAN], [0, 0, 0])
    for name in ("grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl", "soft_baseline"):
        assert advantage(name, batch) == [0.0, 0.0, 0.0], name


def test_gpg_scales_by_scored_rows_over_rewarded_rows() -> None:
    batch = batch_of([1.0, 0.0, 0.0, 0.0, NAN], [0, 0, 1, 1, 1])
    assert advantage("gpg", batch) == [4 * 0.5, -4 * 0.5, 0.0, 0.0, 0.0]
    assert advantage("gpg", batch_of([0.0, 0.0], [0, 0])) == [0.0, 0.0]


def test_opo_without_a_response_token_in_the_group_is_zero() -> None:
    mask = torch.tensor([[False], [False], [True], [False]])
    batch = batch_of([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], loss_mask=mask)
    assert advantage("opo", batch) == [0.0] * 4, "the only non-empty row is its own baseline"


def test_max_rl_needs_a_positive_mean() -> None:
    batch = batch_of([1.0, 0.0, 1.0, -1.0, -1.0, -2.0], [0, 0, 1, 1, 2, 2])
    assert advantage("max_rl", batch) == [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]


def test_passk_rewards_only_a_strict_winner() -> None:
    batch = batch_of([0.0, 1.0, 0.5, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1])
    assert advantage("grpo_passk", batch, std=False) == [0.0, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_passk_compares_the_winner_with_scored_rows_only() -> None:
    batch = batch_of([NAN, -0.5, -1.5], [0, 0, 0])
    assert advantage("grpo_passk", batch, std=False) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("tau", "baseline"), [(1e6, 0.5), (1e-4, 1.0)])
def test_soft_baseline_runs_from_the_mean_to_the_maximum(tau: float, baseline: float) -> None:
    got = advantage("soft_baseline", batch_of([1.0, 0.0], [0, 0]), tau=tau)
    assert got == pytest.approx([1 - baseline, -baseline], abs=1e-4)


def test_optimal_token_baseline_by_hand() -> None:
    """Rows of 1, 2 and 3 loss tokens, one with a hole; weights w = .5 everywhere, so W_k = k / 2."""
    mask = torch.tensor([[1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    token_reward = torch.tensor([[1.0, NAN, NAN, NAN], [0.0, NAN, 0.5, NAN], [0.25, 0.0, NAN, 2.0]])
    keys = {
        "token_reward": token_reward,
        "old_logprob": torch.full((3, 4), math.log(0.5)),
        "sum_pi_squared": torch.full((3, 4), 0.5),
        "loss_mask": mask,
    }
    batch = batch_of([0.0] * 3, [0, 0, 0], **keys)
    first = (1.0 + 0.5 + 2.25) / 3
    second = (0.5 + 2.0) / 2
    for zero_tail, tail in ((True, 2.0), (False, 0.0)):
        table = {"name": "optimal_token_baseline", "zero_tail": zero_tail, "eps": 0.0}
        got = titanrl.build("advantage", table)(batch)
        expected = torch.tensor(
            [
                [1.0 - first, 0, 0, 0],
                [0.5 - first, 0, 0.5 - second, 0],
                [2.25 - first, 2.0 - second, 0, tail],
            ]
        )
        torch.testing.assert_close(got.advantage, expected)
        assert got.returns[2].tolist() == [2.25, 2.0, 0.0, 2.0]
    alone = titanrl.build("advantage", {"name": "optimal_token_baseline"})(batch[2:])
    assert not alone.advantage.any()


@pytest.mark.slow
def test_gae_is_zero_on_an_unscored_row() -> None:
    batch = batch_of(
        [0.0, 0.0],
        [0, 0],
        loss_mask=torch.tensor([[True, False, True]] * 2),
        token_reward=torch.tensor([[0.0, NAN, NAN], [0.0, NAN, 1.0]]),
        value=torch.tensor([[0.5, NAN, 0.25]] * 2),
    )
    for whiten in (True, False):
        got = titanrl.build("advantage", {"name": "gae", "whiten": whiten})(batch)
        assert got.advantage[0].tolist() == [0.0, 0.0, 0.0]
        assert got.returns is not None
        assert got.returns[0].tolist() == [0.5, 0.0, 0.25]
        assert got.advantage[1, [0, 2]].any()


def test_ema_baseline_is_updated_once_per_batch_by_agent_count() -> None:
    estimator = titanrl.build("advantage", {"name": "ema_baseline", "decay": 0.5})
    batch = batch_of([1.0, 0.0, 4.0, NAN], [0, 0, 1, 1], agent_id=torch.tensor([0, 0, 7, 7]))
    assert estimator(batch).advantage[:, 0].tolist() == [1.0, 0.0, 4.0, 0.0]
    assert estimator.state_dict() == {"baseline": {"0": 0.75 * 0.5, "7": 0.5 * 4.0}}
    assert estimator(batch.flip(0)).advantage[:, 0].tolist() == [0.0, 2.0, -0.375, 0.625]


def test_reward_of_a_fully_masked_row_counts_in_its_group_only() -> None:
    mask = torch.tensor([[True], [False], [True]])
    batch = batch_of([1.0, 0.0, 0.5], [0, 0, 0], loss_mask=mask)
    assert advantage("rloo", batch) == [0.75, 0.0, 0.0]
