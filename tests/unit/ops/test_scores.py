"""Row scores and their tokens."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict

from titanrl.ops.scores import reward_key, row_score, scored_tokens, to_tokens

MASK = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)


def test_row_score_of_token_rewards_sums_response_tokens() -> None:
    batch = TensorDict(
        {
            "loss_mask": MASK,
            "reward": torch.tensor([9.0, 9.0, 9.0]),
            "token_reward": torch.tensor([[0.5, 1e9, 0.25], [math.nan, math.nan, 1.0], [1.0, 1.0, 1.0]]),
        },
        batch_size=[3],
    )
    got = row_score(batch, "token_reward")
    assert got[0] == 0.75
    assert got[1].isnan(), "a trainable NaN marks the row as unscored"
    assert got[2] == 0
    assert row_score(batch, "reward").tolist() == [9.0, 9.0, 9.0]


def test_scored_tokens_excludes_rows_with_nan() -> None:
    token_reward = torch.tensor([[0.5, math.nan, 0.25], [0.0, math.nan, 1.0], [math.nan] * 3])
    assert scored_tokens(token_reward, MASK).tolist() == [[True, False, True], [False] * 3, [False] * 3]


def test_to_tokens_copies_to_response_tokens() -> None:
    got = to_tokens(torch.tensor([1.5, math.nan, 2.0], dtype=torch.float64), MASK)
    assert got.dtype == torch.float32
    assert got[0].tolist() == [1.5, 0.0, 1.5]
    got[2, 0] = 7.0
    assert got[2].tolist() == [7.0, 0.0, 0.0]


def test_reward_key_names_the_sum_or_one_reward() -> None:
    assert reward_key("reward") == "reward"
    assert reward_key("accuracy") == ("rewards", "accuracy")
