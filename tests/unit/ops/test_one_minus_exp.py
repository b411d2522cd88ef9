"""1 - exp(x) near 0."""

from __future__ import annotations

import torch

from titanrl.ops.one_minus_exp import one_minus_exp


def test_one_minus_exp_is_precise_near_zero_and_one() -> None:
    logprob = -torch.logspace(-9, 2, 200)
    exact = -torch.expm1(logprob.double())
    torch.testing.assert_close(one_minus_exp(logprob).double(), exact, rtol=1e-6, atol=0.0)


def test_one_minus_exp_of_a_positive_number_is_negative() -> None:
    """AlphaPO's exponent has either sign."""
    x = torch.tensor([1e-6, 0.5, 80.0])
    torch.testing.assert_close(one_minus_exp(x).double(), -torch.expm1(x.double()), rtol=1e-6, atol=0.0)


def test_one_minus_exp_has_the_closed_form_gradient() -> None:
    logprob = torch.tensor([-1e-6, -0.7, -30.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(one_minus_exp(logprob).log().sum(), logprob)
    x = logprob.detach().double()
    torch.testing.assert_close(gradient.double(), x.exp() / torch.expm1(x), rtol=1e-5, atol=1e-9)
