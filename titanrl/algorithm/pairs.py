"""Preference pairs from scored responses, in the row order that losses on pairs expect."""

from __future__ import annotations

from itertools import combinations

import torch
from tensordict import TensorDict

__all__ = ["to_preference_pairs", "preference_pairs"]


def to_preference_pairs(batch: TensorDict) -> TensorDict:
    """Returns all pairs of rows of a group with unequal rewards, as rows 2i (better) and 2i + 1 (worse).

    A row occurs once per response of its group with another reward, so groups of equal rewards give no pairs.
    Rows without a reward (NaN) are dropped. Groups keep their order; within a group, pairs are ordered by the
    reward of the better response, highest first. The source `dataset` forms the same pairs from a ranking.

    Args:
        batch: [N] sampled rows with group_id and reward.

    Source: online DPO 2402.04792, which has two responses per prompt.
    """
    return batch[preference_pairs(batch["reward"], batch["group_id"]).flatten()]


def preference_pairs(reward: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    """Returns [P, 2] int64, the row indices of the better and the worse response of each pair.

    Args:
        reward: [N] reward of each row; rows with NaN are in no pair.
        group_id: [N] group of each row; both rows of a pair are of one group, and groups keep their order.
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
