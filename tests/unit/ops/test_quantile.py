"""Quantiles by selection."""

from __future__ import annotations

import pytest
import torch

from titanrl.ops.quantile import quantile


@pytest.mark.parametrize("n", [1, 2, 5, 6, 11, 101])
@pytest.mark.parametrize("q", [0.0, 0.1, 1 - 0.2, 1 - 0.35, 0.5, 1 - 0.9, 1.0])
def test_quantile_is_torch_s_where_torch_has_one(n: int, q: float) -> None:
    x = torch.rand(n, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(quantile(x, q), torch.quantile(x.double(), q), rtol=0, atol=1e-12)


def test_quantile_at_an_element_is_exactly_that_element() -> None:
    """(n - 1) * q may exceed the exact integer by one rounding: interpolation would then miss the element."""
    for n in range(2, 400):
        x = torch.arange(float(n))
        for tenths in range(1, 10):
            if (n - 1) * tenths % 10 == 0:
                assert float(quantile(x, 1 - (10 - tenths) / 10)) == (n - 1) * tenths // 10


def test_quantile_of_nothing_is_nan() -> None:
    assert quantile(torch.zeros(0), 0.5).isnan()
