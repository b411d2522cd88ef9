"""The compiled scan against token-by-token loops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrl.ops.returns import gae, reward_to_go

LENGTHS = [1, 2, 15, 16, 17, 53, 1025]


def loop_gae(
    reward: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, gamma: float, lam: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantages and returns by the definition, one token after the other."""
    advantage, returns = (
        torch.zeros(mask.shape, dtype=torch.float64),
        torch.zeros(mask.shape, dtype=torch.float64),
    )
    for i, row in enumerate(mask.tolist()):
        later, next_value = 0.0, 0.0
        for t in reversed([t for t, trainable in enumerate(row) if trainable]):
            v = float(value[i, t])
            later = float(reward[i, t]) + gamma * next_value - v + gamma * float(lam[i]) * later
            advantage[i, t], returns[i, t], next_value = later, later + v, v
    return advantage, returns


def random_case(rows: int, length: int, density: float, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(rows, length, generator=generator) for _ in range(2))
    mask = torch.rand(rows, length, generator=generator) < density
    return torch.where(mask, reward, torch.nan), torch.where(mask, value, torch.inf), mask


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (0.5, 1.0), (0.0, 0.3), (0.97, 0.0)])
def test_gae_equals_the_token_loop(length: int, density: float, gamma: float, lam: float) -> None:
    reward, value, mask = random_case(4, length, density, seed=length)
    got = gae(reward, value, mask, gamma, lam)
    expected = loop_gae(reward, value, mask, gamma, torch.full((4,), lam, dtype=torch.float64))
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == torch.float32
        assert not left[~mask].any()
        torch.testing.assert_close(left.double(), right, rtol=2e-6, atol=2e-6)


def test_gae_takes_a_lambda_for_each_row() -> None:
    reward, value, mask = random_case(5, 70, 0.8, seed=0)
    lam = torch.tensor([0.0, 0.3, 0.9, 0.95, 1.0], dtype=torch.float64)
    got = gae(reward, value, mask, 0.9, lam)
    for left, right in zip(got, loop_gae(reward, value, mask, 0.9, lam), strict=True):
        torch.testing.assert_close(left.double(), right, rtol=2e-6, atol=2e-6)


def test_gae_is_precise_on_long_responses() -> None:
    """Rewards on the last token, values around 1, 1024 tokens: float32 within 2e-6 of float64."""
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(8, 1024, generator=generator)
    mask = torch.ones(8, 1024, dtype=torch.bool)
    reward = torch.zeros(8, 1024)
    reward[:, -1] = torch.rand(8, generator=generator)
    lam = torch.full((8,), 0.95, dtype=torch.float64)
    for left, right in zip(
        gae(reward, value, mask, 1.0, 0.95), loop_gae(reward, value, mask, 1.0, lam), strict=True
    ):
        assert (left.double() - right).abs().max() < 2e-6


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 4),
    length=st.integers(1, 48),
    density=st.sampled_from([0.3, 0.9, 1.0]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 999),
)
def test_reward_to_go_sums_later_response_tokens(
    rows: int, length: int, density: float, gamma: float, seed: int
) -> None:
    reward, _, mask = random_case(rows, length, density, seed)
    got = reward_to_go(reward, mask, gamma)
    zero = torch.zeros_like(reward)
    expected, _ = loop_gae(reward, zero, mask, gamma, torch.ones(rows, dtype=torch.float64))
    torch.testing.assert_close(got.double(), expected, rtol=4e-6, atol=4e-6)
    assert not got[~mask].any()


def test_returns_accept_any_memory_layout_and_do_not_modify_inputs() -> None:
    reward, value, mask = (x.T for x in random_case(40, 3, 0.8, seed=1))
    before = reward.clone(), value.clone()
    got = gae(reward.double(), value, mask, 0.9, 0.95)
    expected = gae(reward.contiguous(), value.contiguous(), mask.contiguous(), 0.9, 0.95)
    for left, right in zip(got, expected, strict=True):
        assert torch.equal(left, right)
    for left, right in zip((reward, value), before, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
