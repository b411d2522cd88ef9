"""The blocked scans against token-by-token loops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrl.ops.returns import BLOCK, HEADS, Layout, decayed_sum, gae, reward_to_go

LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, BLOCK * HEADS + 1]


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
    got = gae(reward, value, Layout.of(mask), gamma, lam)
    expected = loop_gae(reward, value, mask, gamma, torch.full((4,), lam, dtype=torch.float64))
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == torch.float32
        assert not left[~mask].any()
        torch.testing.assert_close(left.double(), right, rtol=2e-6, atol=2e-6)


def test_gae_takes_a_lambda_for_each_row() -> None:
    reward, value, mask = random_case(5, 70, 0.8, seed=0)
    lam = torch.tensor([0.0, 0.3, 0.9, 0.95, 1.0], dtype=torch.float64)
    got = gae(reward, value, Layout.of(mask), 0.9, lam)
    for left, right in zip(got, loop_gae(reward, value, mask, 0.9, lam), strict=True):
        torch.testing.assert_close(left.double(), right, rtol=2e-6, atol=2e-6)


def test_gae_is_exact_on_answers_of_a_usual_size() -> None:
    """Rewards on the last token, values around 1, 1024 tokens: float32 within 2e-6 of float64."""
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(8, 1024, generator=generator)
    mask = torch.ones(8, 1024, dtype=torch.bool)
    reward = torch.zeros(8, 1024)
    reward[:, -1] = torch.rand(8, generator=generator)
    lam = torch.full((8,), 0.95, dtype=torch.float64)
    for left, right in zip(
        gae(reward, value, Layout.of(mask), 1.0, 0.95), loop_gae(reward, value, mask, 1.0, lam), strict=True
    ):
        assert (left.double() - right).abs().max() < 2e-6


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 4),
    length=st.integers(1, 3 * BLOCK),
    density=st.sampled_from([0.3, 0.9, 1.0]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 999),
)
def test_reward_to_go_sums_later_trainable_tokens(
    rows: int, length: int, density: float, gamma: float, seed: int
) -> None:
    reward, _, mask = random_case(rows, length, density, seed)
    got = reward_to_go(reward, mask, gamma)
    zero = torch.zeros_like(reward)
    expected, _ = loop_gae(reward, zero, mask, gamma, torch.ones(rows, dtype=torch.float64))
    torch.testing.assert_close(got.double(), expected, rtol=4e-6, atol=4e-6)
    assert not got[~mask].any()


def test_layout_moves_tokens_only_where_a_row_has_holes() -> None:
    runs = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    assert Layout.of(runs).token is None
    holed = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
    layout = Layout.of(holed)
    packed = layout.gather(torch.tensor([[1.0, torch.nan, 2.0, torch.nan], [torch.inf, 3.0, 4.0, 5.0]]))
    assert packed.tolist() == [[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]]
    assert layout.scatter(packed).tolist() == [[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 4.0, 0.0]]


def test_decayed_sum_does_not_change_its_input() -> None:
    x = torch.randn(3, 100)
    before = x.clone()
    decayed_sum(x, 0.9)
    assert torch.equal(x, before)


def test_decayed_sum_keeps_float64() -> None:
    x = torch.rand(2, 200, dtype=torch.float64)
    expected = x.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(decayed_sum(x, 1.0), expected, rtol=1e-13, atol=1e-13)
