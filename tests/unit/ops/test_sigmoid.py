"""The logistic function near its bounds."""

from __future__ import annotations

import pytest
import torch

from titanrl.ops.sigmoid import sigmoid


@pytest.mark.parametrize("x", [-80.0, -15.0, -1.0, 0.0, 1.0, 10.0, 15.0, 40.0])
def test_value_and_gradient_have_all_digits(x: float) -> None:
    exact = torch.tensor(x, dtype=torch.float64).sigmoid() * torch.tensor(-x, dtype=torch.float64).sigmoid()
    argument = torch.tensor(x, requires_grad=True)
    value = sigmoid(argument)
    value.backward()
    assert argument.grad is not None
    assert float(value) == pytest.approx(float(torch.tensor(x, dtype=torch.float64).sigmoid()), rel=1e-5)
    assert float(argument.grad) == pytest.approx(float(exact), rel=1e-5)
