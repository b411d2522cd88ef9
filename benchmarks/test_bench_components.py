"""Speed of advantages and loss weights relative to other trainers' implementations, in one thread.

Each benchmark first asserts that both give the same numbers, then alternates them and compares medians of CPU
time; the required ratio is asserted. Run: ``pytest benchmarks/test_bench_components.py --benchmark-enable``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from benchmarks.timing import compare
from titanrl.ops.returns import gae

pytestmark = pytest.mark.usefixtures("one_thread")

# ------------------------------------------------------------------ GAE


def token_loop_gae(
    reward: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantages and returns by verl's loop from the last token to the first, which skips holes."""
    keep = mask.to(reward.dtype)
    advantage, next_value = torch.zeros_like(reward[:, 0]), torch.zeros_like(reward[:, 0])
    columns = []
    for t in reversed(range(reward.shape[1])):
        delta = reward[:, t] + gamma * next_value - value[:, t]
        new = delta + gamma * lam * advantage
        next_value = value[:, t] * keep[:, t] + (1 - keep[:, t]) * next_value
        advantage = new * keep[:, t] + (1 - keep[:, t]) * advantage
        columns.append(advantage)
    advantage = torch.stack(columns[::-1], 1)
    return advantage * keep, (advantage + value) * keep


@pytest.mark.parametrize(("holes", "at_least"), [(False, 80.0), (True, 18.0)], ids=["dense", "holes"])
def test_bench_gae(benchmark: Any, holes: bool, at_least: float) -> None:
    """[256, 1024]: responses of different lengths, the reward on the last token; 10% of tokens masked."""
    generator = torch.Generator().manual_seed(0)
    rows, length, gamma, lam = 256, 1024, 0.99, 0.95
    value = torch.randn(rows, length, generator=generator)
    begin = torch.randint(0, 100, (rows, 1), generator=generator)
    end = torch.randint(800, length, (rows, 1), generator=generator)
    place = torch.arange(length)
    mask = (place >= begin) & (place < end)
    if holes:
        mask &= torch.rand(rows, length, generator=generator) < 0.9
    reward = torch.where(place == end - 1, torch.rand(rows, 1, generator=generator), 0.0)

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        return gae(reward, value, mask, gamma, lam)

    expected = token_loop_gae(reward.double(), value.double(), mask, gamma, lam)
    for left, right in zip(ours(), expected, strict=True):
        assert (left.double() - right).abs().max() < 2e-6
    compare(
        benchmark,
        ours,
        lambda: token_loop_gae(reward, value, mask, gamma, lam),
        at_least,
        against="token loop",
    )


def test_bench_gae_of_torchrl(benchmark: Any) -> None:
    """The same relative to torchrl's vectorized estimator, which has no masks: full rows of equal length."""
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    generator = torch.Generator().manual_seed(0)
    rows, length, gamma, lam = 256, 1024, 0.99, 0.95
    value = torch.randn(rows, length, generator=generator)
    reward = torch.randn(rows, length, generator=generator)
    mask = torch.ones(rows, length, dtype=torch.bool)
    done = torch.zeros(rows, length, 1, dtype=torch.bool)
    done[:, -1] = True

    def peer() -> tuple[torch.Tensor, torch.Tensor]:
        state = value.unsqueeze(-1)
        following = torch.cat([state[:, 1:], torch.zeros(rows, 1, 1)], 1)
        return vec_generalized_advantage_estimate(  # type: ignore[no-any-return]
            gamma, lam, state, following, reward.unsqueeze(-1), done, done
        )

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        return gae(reward, value, mask, gamma, lam)

    for left, right in zip(ours(), peer(), strict=True):
        torch.testing.assert_close(left, right[..., 0], rtol=1e-4, atol=1e-4)
    compare(benchmark, ours, peer, 20.0, against="torchrl")


# ------------------------------------------------------------------ group advantage


def dictionary_loop(batch: TensorDict) -> torch.Tensor:
    """Returns GRPO's advantage by a dictionary from prompt to scores, as most trainers do."""
    scores, ids = batch["reward"].clone(), batch["group_id"].tolist()
    of_group: dict[int, list[torch.Tensor]] = defaultdict(list)
    for i, group in enumerate(ids):
        of_group[group].append(scores[i])
    mean = {group: torch.stack(scores).mean() for group, scores in of_group.items()}
    std = {group: torch.stack(scores).std() for group, scores in of_group.items()}
    for i, group in enumerate(ids):
        scores[i] = (scores[i] - mean[group]) / (std[group] + 1e-6)
    return scores.unsqueeze(-1) * batch["loss_mask"]


def dense(batch: TensorDict) -> torch.Tensor:
    """Returns the same by products with the [N, P] membership matrix."""
    member = torch.nn.functional.one_hot(batch["group_id"]).double()
    count, score = member.sum(0), batch["reward"].double()
    centred = score - member @ ((score @ member) / count)
    std = ((centred.square() @ member) / (count - 1)).sqrt()
    return (centred / (member @ std + 1e-6)).float().unsqueeze(-1) * batch["loss_mask"]


@pytest.mark.parametrize(
    ("peer", "at_least"), [(dictionary_loop, 40.0), (dense, 6.0)], ids=["dictionary loop", "matrix products"]
)
def test_bench_group_advantage(
    benchmark: Any, peer: Callable[[TensorDict], torch.Tensor], at_least: float
) -> None:
    """4,096 rows of 64 tokens in groups of 8."""
    generator = torch.Generator().manual_seed(0)
    rows = 4096
    batch = TensorDict(
        {
            "loss_mask": torch.arange(64) < torch.randint(8, 65, (rows, 1), generator=generator),
            "group_id": torch.arange(rows) // 8,
            "reward": torch.rand(rows, generator=generator),
        },
        batch_size=[rows],
    )
    estimator = titanrl.build("advantage", {"name": "grpo"})
    torch.testing.assert_close(estimator(batch).advantage, peer(batch), rtol=1e-4, atol=1e-5)
    compare(
        benchmark,
        lambda: estimator(batch),
        lambda: peer(batch),
        at_least,
        against=peer.__name__.replace("_", " "),
    )


# ------------------------------------------------------------------ weights


def row_loop_weights(mask: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    """Returns the weights of group_mean by a dictionary of token counts and a loop over rows."""
    tokens: dict[int, int] = defaultdict(int)
    for i, group in enumerate(group_id.tolist()):
        tokens[group] += int(mask[i].sum())
    live = sum(1 for count in tokens.values() if count)
    weight = torch.zeros(mask.shape)
    for i, group in enumerate(group_id.tolist()):
        if tokens[group]:
            weight[i] = mask[i] / (live * tokens[group])
    return weight


def test_bench_weights(benchmark: Any) -> None:
    """group_mean, the only aggregation that uses groups, on [4096, 64]."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(64) < torch.randint(0, 65, (4096, 1), generator=generator)
    group_id = torch.arange(4096) // 8
    aggregation = titanrl.build("aggregation", {"name": "group_mean"})
    torch.testing.assert_close(aggregation(mask, group_id), row_loop_weights(mask, group_id))
    compare(
        benchmark,
        lambda: aggregation(mask, group_id),
        lambda: row_loop_weights(mask, group_id),
        20.0,
        against="row loop",
    )
