"""Random batches that every loss accepts, and the rearrangements of a batch that make no difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from titanrl import PolicyOutputs

Batch = dict[str, torch.Tensor]
CANDIDATES = 3
LAW = settings(max_examples=4, deadline=None)
"""Few examples of each law: it runs over every loss and every table of it."""


@st.composite
def samples(draw: st.DrawFn, *, max_groups: int = 3, max_length: int = 7) -> tuple[PolicyOutputs, Batch]:
    """Returns a step of groups of 2 or 4 rows (so that pairs are whole), with holes in the mask."""
    sizes = draw(st.lists(st.sampled_from([2, 4]), min_size=1, max_size=max_groups))
    length = draw(st.integers(2, max_length))
    return sample(sizes, length, draw(st.integers(0, 10_000)), draw(st.sampled_from([0.4, 0.8, 1.0])))


def sample(sizes: list[int], length: int, seed: int, density: float = 0.7) -> tuple[PolicyOutputs, Batch]:
    """Returns policy outputs (leaves) and a batch, float64 with values that float32 holds exactly.

    Args:
        sizes: rows of each group. density: chance of a token to be trainable.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = sum(sizes)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape, generator=generator)).double()

    def logprob(*shape: int) -> torch.Tensor:
        return -normal(*shape).abs() - 0.01

    def candidates() -> torch.Tensor:
        return torch.log_softmax(normal(rows, length, 2 * CANDIDATES), -1)[..., :CANDIDATES].float().double()

    mask = torch.rand(rows, length, generator=generator) < density
    old = logprob(rows, length)
    batch = {
        "loss_mask": mask,
        "group_id": torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)),
        "old_logprob": old,
        "ref_logprob": (old + normal(rows, length, scale=0.3)).float().double(),
        "advantage": torch.where(mask, normal(rows, 1) + normal(rows, length, scale=0.1), 0.0)
        .float()
        .double(),
        "returns": torch.where(mask, normal(rows, length), 0.0),
        "value": normal(rows, length),
        "token_reward": torch.rand(rows, length, generator=generator).double(),
        "reward": normal(rows),
        "reference_point": torch.full((rows,), 0.125, dtype=torch.float64),
        "margin": torch.full((rows,), 0.5, dtype=torch.float64),
        "candidate_ids": torch.randint(0, 99, (rows, length, CANDIDATES), generator=generator),
        "candidate_logprob": candidates(),
        "loss_weight": torch.where(mask, torch.rand(rows, length, generator=generator).double(), 0.0),
    }
    policy = PolicyOutputs(
        logprob=(old + normal(rows, length, scale=0.3)).float().double(),
        entropy=normal(rows, length).abs(),
        value=normal(rows, length),
        sum_pi_squared=torch.rand(rows, length, generator=generator).double() + 0.05,
        candidate_logprob=candidates(),
    )
    batch |= {
        "teacher_logprob": (old + normal(rows, length, scale=0.3)).float().double(),
        "policy_version_token": torch.where(
            mask, torch.randint(0, 8, (rows, length), generator=generator), -1
        ).int(),
        "current_version": torch.full((rows,), 7, dtype=torch.int32),
    }
    return policy, batch


def leaves(policy: PolicyOutputs) -> PolicyOutputs:
    """Returns copies that ask for gradients."""
    return PolicyOutputs(*(None if x is None else x.detach().clone().requires_grad_() for x in policy))


def fill_masked(policy: PolicyOutputs, batch: Batch, garbage: float) -> tuple[PolicyOutputs, Batch]:
    """Returns both with garbage where values are undefined: masked positions and numbers of empty rows."""
    mask = batch["loss_mask"]
    kept = {
        "loss_mask",
        "group_id",
        "candidate_ids",
        "loss_weight",
        "policy_version_token",
        "current_version",
    }

    def fill(x: torch.Tensor) -> torch.Tensor:
        place = mask.any(-1) if x.ndim == 1 else mask if x.ndim == 2 else mask[..., None]
        return torch.where(place, x, garbage)

    return (
        PolicyOutputs(*(None if x is None else fill(x) for x in policy)),
        {key: value if key in kept else fill(value) for key, value in batch.items()},
    )


def take(policy: PolicyOutputs, batch: Batch, rows: torch.Tensor) -> tuple[PolicyOutputs, Batch]:
    """Returns the given rows, in the given order."""
    return PolicyOutputs(*(x[rows] for x in policy)), {key: value[rows] for key, value in batch.items()}


def spread(
    policy: PolicyOutputs, batch: Batch, places: torch.Tensor, length: int, garbage: float
) -> tuple[PolicyOutputs, Batch]:
    """Returns both with token t of row i in column places[i, t], and masked garbage between."""

    def move(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 1:
            return x
        empty = False if x.dtype == torch.bool else 0 if not x.is_floating_point() else garbage
        result = torch.full((x.shape[0], length, *x.shape[2:]), empty, dtype=x.dtype)
        index = places if x.ndim == 2 else places[..., None].expand(x.shape)
        return result.scatter(1, index, x)

    moved = {key: move(value) for key, value in batch.items()}
    moved["loss_weight"] = torch.where(moved["loss_mask"], moved["loss_weight"], 0.0)
    return PolicyOutputs(*(move(x) for x in policy)), moved


class Recorder(Mapping[str, torch.Tensor]):
    """A batch that remembers which keys were read."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.read: set[Any] = set()

    def __getitem__(self, key: str) -> torch.Tensor:
        self.read.add(key)
        return self.batch[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch)

    def __len__(self) -> int:
        return len(self.batch)
