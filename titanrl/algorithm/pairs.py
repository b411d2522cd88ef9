"""Scored responses -> preference pairs, in the order in which losses on pairs read them."""

from __future__ import annotations

from itertools import combinations

import torch
from tensordict import TensorDict

__all__ = ["to_preference_pairs", "preference_pairs"]


def to_preference_pairs(batch: TensorDict) -> TensorDict:
    """Returns every two rows of a group of unequal reward as rows 2i (the better) and 2i + 1 (the worse).

    A row stands in as many pairs as there are answers of its group of another reward, in none if all are
    equal. Rows without a reward (NaN) are left out. Groups stay in order, the best answers first; the source
    `dataset` makes the same pairs of a ranking.

    Args:
        batch: [N] sampled rows with group_id and reward.

    Source: online DPO 2402.04792, with two answers to a prompt.
    """
    return batch[preference_pairs(batch["reward"], batch["group_id"]).flatten()]


def preference_pairs(reward: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    """Returns [P, 2] int64, the row numbers of the better and the worse of every two of unequal reward.

    Args:
        reward: [N]; rows of NaN are in no pair.
        group_id: [N]; pairs are of one group, in the groups' order.
    """
    rewards: list[float] = reward.tolist()
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(group_id.tolist()):
        groups.setdefault(group, []).append(row)
    pairs: list[tuple[int, int]] = []
    for rows in groups.values():
        scored = sorted((row for row in rows if rewards[row] == rewards[row]), key=lambda row: -rewards[row])
        pairs += [pair for pair in combinations(scored, 2) if rewards[pair[0]] > rewards[pair[1]]]
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
