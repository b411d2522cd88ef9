"""Sums and means along rows."""

from __future__ import annotations

import torch

from titanrl.ops.sequence import sequence_mean, sequence_sum


def test_sums_of_long_rows_keep_precision() -> None:
    """A sum in float32 is wrong in the first digit here, by an error that depends on the processor."""
    x = torch.full((1, 100_000), -0.1)
    x[0, 0] = 1e4
    mask = torch.ones_like(x, dtype=torch.bool)
    exact = 1e4 + 99_999 * float(x[0, 1])
    assert sequence_sum(x, mask).item() == torch.tensor(exact).float().item()
    assert abs(sequence_mean(x, mask).item() - exact / 100_000) < 1e-9


def test_sums_and_means_exclude_masked_tokens() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0], [float("inf")] * 3])
    mask = torch.tensor([[True, False, True], [False] * 3])
    assert sequence_sum(x, mask).tolist() == [[4.0], [0.0]]
    assert sequence_mean(x, mask).tolist() == [[2.0], [0.0]]
