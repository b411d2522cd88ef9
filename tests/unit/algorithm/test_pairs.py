"""Preference pairs of sampled answers."""

from __future__ import annotations

from math import nan

import pytest
import torch
from tensordict import TensorDict

from titanrl.algorithm.pairs import to_preference_pairs


def paired(reward: list[float], group: list[int]) -> list[list[int]]:
    """Returns (better row, worse row) of each pair."""
    batch = {"reward": torch.tensor(reward), "group_id": torch.tensor(group), "row": torch.arange(len(group))}
    found = to_preference_pairs(TensorDict(batch, batch_size=[len(group)]))
    return found["row"].view(-1, 2).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("reward", "group", "pairs"),
    [
        ([0.0, 1.0], [4, 4], [[1, 0]]),
        ([1.0, 1.0], [0, 0], []),
        ([nan, 1.0], [0, 0], []),
        ([0.5, 0.2, 0.9, 0.2], [0] * 4, [[2, 0], [2, 1], [2, 3], [0, 1], [0, 3]]),
        ([0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], [[1, 0], [3, 2]]),
        # Never across groups, also where their rows are mixed.
        ([0.0, 2.0, 1.0, 3.0], [0, 1, 0, 1], [[2, 0], [3, 1]]),
    ],
)
def test_every_two_rows_of_unequal_reward_become_a_pair_the_better_first(
    reward: list[float], group: list[int], pairs: list[list[int]]
) -> None:
    assert paired(reward, group) == pairs
