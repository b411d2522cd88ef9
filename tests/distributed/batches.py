"""The batches that every mesh trains on, and their sharding over data-parallel ranks."""

from __future__ import annotations

import torch
from tensordict import TensorDict

__all__ = ["LENGTH", "answers", "deal", "pairs", "starved"]

LENGTH = 40
# (group, prompt tokens, loss tokens of each row); a row without loss tokens is for comparison only.
ANSWERS = [(7, 9, (4, 2, 1, 3)), (3, 5, (3, 0, 14, 6)), (5, 12, (23, 2, 0)), (1, 2, (1, 9))]
PAIRS = [(7, 9, (4, 2)), (3, 5, (1, 3)), (5, 12, (23, 0)), (1, 2, (9, 14)), (2, 3, (2, 17))]


def answers(seed: int) -> TensorDict:
    """Returns 13 rows in 4 groups with the keys of policy gradient, regression and distillation."""
    return _batch(ANSWERS, seed)


def pairs(seed: int) -> TensorDict:
    """Returns 10 rows in 5 preference pairs, of which one has an empty side."""
    return _batch(PAIRS, seed)


def _batch(groups: list[tuple[int, int, tuple[int, ...]]], seed: int) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    group_id = torch.tensor([group for group, _, lengths in groups for _ in lengths])
    rows = len(group_id)
    raw = torch.randint(4, 90, (rows, LENGTH + 1), generator=generator)
    mask = torch.zeros(rows, LENGTH, dtype=torch.bool)
    row = 0
    for _, prompt, lengths in groups:
        first = row
        for length in lengths:
            raw[row, : prompt + 1] = raw[first, : prompt + 1]
            mask[row, prompt : prompt + length] = True
            if length > 10:
                # A tool output inside the row.
                mask[row, prompt + 3 : prompt + 6] = False
            row += 1
    numbers = torch.randn(3, rows, LENGTH, generator=generator)
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": group_id,
            "advantage": numbers[0] * mask,
            "old_logprob": (-4.5 + 0.3 * numbers[1]) * mask,
            "ref_logprob": (-4.5 + 0.3 * numbers[2]) * mask,
            "value": numbers[1] * mask,
            "returns": numbers[0] * mask,
            "loss_weight": mask / mask.sum(1, keepdim=True).clamp_min(1) / rows,
        },
        batch_size=[rows],
    )


def starved(batch: TensorDict) -> TensorDict:
    """Returns the batch with loss tokens in every second group only: half of 2 or 4 ranks have none."""
    for key in ("loss_mask", "loss_weight"):
        batch[key] = batch[key] * (_number(batch) % 2 == 0)[:, None]
    return batch


def deal(batch: TensorDict, rank: int, degree: int) -> TensorDict:
    """Returns every ``degree``-th group."""
    return batch[_number(batch) % degree == rank]


def _number(batch: TensorDict) -> torch.Tensor:
    """[N] int64, the index of each row's group in the batch's order."""
    number: torch.Tensor = torch.unique_consecutive(batch["group_id"], return_inverse=True)[1]
    return number
