"""Seeds, uniform numbers and drawing: expected values by hand or from an independent reference."""

from __future__ import annotations

import math

import pytest
import torch

from titanrl.ops.sampling import apply_top_k_top_p, sample_from_logits
from titanrl.ops.seeds import sample_seed, uniforms

WRAP = 2**64 - 1


def splitmix(x: int) -> int:
    """SplitMix64's finalizer on unsigned numbers, as published."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WRAP
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WRAP
    return x ^ (x >> 31)


def test_finalizer_gives_the_published_stream() -> None:
    # The first output of SplitMix64 seeded with 0; java.util.SplittableRandom(0) begins with it.
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_uniforms_follow_splitmix() -> None:
    seeds = [0, 1, 123456789, 2**63 - 1]
    for position in (0, 1, 77, 2**20):
        golden = 0x9E3779B97F4A7C15
        expected = [
            (splitmix((splitmix((seed + golden) & WRAP) + (position + 1) * golden) & WRAP) >> 11) / 2**53
            for seed in seeds
        ]
        assert uniforms(torch.tensor(seeds), position).tolist() == expected


def test_uniforms_are_uniform_over_seeds_and_positions() -> None:
    seeds = torch.tensor([sample_seed(0, 0, group, sample) for group in range(64) for sample in range(64)])
    numbers = torch.stack([uniforms(seeds, position) for position in range(16)])
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    counts = torch.histc(numbers.float(), bins=64, min=0, max=1)
    chi = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(chi - 63) < 5 * math.sqrt(2 * 63)
    assert abs(float(torch.corrcoef(numbers[:2])[0, 1])) < 0.06


def test_seeds_differ_in_every_argument_and_repeat() -> None:
    numbers = [
        (seed, step, group, sample)
        for seed in range(4)
        for step in range(4)
        for group in range(4)
        for sample in range(4)
    ]
    seeds = [sample_seed(*each) for each in numbers]
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == 256  # torch's CPU generator takes 32 bits
    assert seeds == [sample_seed(*each) for each in numbers]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_is_the_same_in_every_version() -> None:
    # Written once: another value would change every run that is resumed.
    assert sample_seed(0, 0, 0, 0) == 1823813673921316309


def test_draw_inverts_the_cumulative_distribution() -> None:
    logprob = torch.tensor([[0.2, 0.0, 0.5, 0.3, 0.0]]).log()
    cases = {0.0: 0, 0.19: 0, 0.21: 2, 0.69: 2, 0.71: 3, 1 - 2**-53: 3}
    for uniform, token in cases.items():
        tokens, found = sample_from_logits(logprob + 7, torch.tensor([uniform], dtype=torch.float64))
        assert tokens.tolist() == [token], uniform
        torch.testing.assert_close(found, logprob[:, token])


@pytest.mark.parametrize("vocabulary", [3, 256, 700, 1024])
def test_draw_over_many_blocks_is_that_of_one_running_sum(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(200, vocabulary, generator=generator)
    logits[:, 1] = -torch.inf
    uniform = torch.rand(200, dtype=torch.float64, generator=generator)
    tokens, logprob = sample_from_logits(logits, uniform)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    torch.testing.assert_close(tokens, torch.searchsorted(cumulative, uniform[:, None], right=True)[:, 0])
    torch.testing.assert_close(logprob, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


def test_draw_never_takes_an_impossible_token() -> None:
    logprob = torch.tensor([[0.0, 1.0, 0.0]]).log()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sample_from_logits(logprob.expand(2, -1), ends)[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        # softmax [2, 1, 0, -1] = .6439, .2369, .0871, .0321; sums .6439, .8808, .9679
        ({"top_p": 0.6}, [0]),
        ({"top_p": 0.8}, [0, 1]),
        ({"top_p": 0.9}, [0, 1, 2]),
        ({"top_p": 1e-9}, [0]),
        # of the first three, .6652, .2447, .09: two reach .7
        ({"top_k": 3, "top_p": 0.7}, [0, 1]),
    ],
)
def test_truncation_keeps_the_likeliest(settings: dict[str, float], kept: list[int]) -> None:
    order = [2, 0, 3, 1]
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])[:, order]
    found = apply_top_k_top_p(logits, **settings).isfinite()[0].nonzero().flatten().tolist()
    assert sorted(order[index] for index in found) == kept


def test_truncated_logprobs_are_renormalised() -> None:
    # logits [2, 1] alone: -.313262, -1.313262
    logprob = apply_top_k_top_p(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), top_k=2).log_softmax(-1)
    torch.testing.assert_close(logprob[0, :2], torch.tensor([-0.313262, -1.313262]), atol=1e-6, rtol=0)
