"""Positions of the last loss tokens."""

from __future__ import annotations

import pytest
import torch

from titanrl.ops.prefix import loss_lengths


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        ([[0, 1, 0, 1, 0]], [4]),  # Gaps count, tokens after the last loss token do not.
        ([[0, 0, 0], [0, 0, 1], [1, 0, 0]], [0, 3, 1]),
        ([[], []], [0, 0]),
    ],
)
def test_row_ends_with_its_last_loss_position(mask: list[list[int]], lengths: list[int]) -> None:
    actual = loss_lengths(torch.tensor(mask, dtype=torch.bool))
    assert actual.tolist() == lengths
    assert actual.dtype == torch.int64
