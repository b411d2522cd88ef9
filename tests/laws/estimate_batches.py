"""Random scored batches for the components of stage `estimate`, and every table that they are tried with."""

from __future__ import annotations

import pickle
import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import tomli_w
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tensordict import TensorDict

import titanrl
from tests.golden import cases

LAW = settings(max_examples=8, deadline=None)
"""Few examples of each law: it runs over every component of a kind and every table of it."""
REWARDS = ("accuracy", "format")
VALUES = (-0.7, 0.0, 0.1, 0.35, 0.7, 1 / 3, 1.0)
"""Numbers whose float32 means are not themselves, on both sides of 0, which an unscored row must not be."""


def tables(kind: str) -> list[dict[str, Any]]:
    """Returns for each registered name of ``kind`` its defaults, if it has them all, and golden tables."""
    found = []
    golden = [cases.table(case) for case in cases.load(kind) if "error" not in case["expect"]]
    for name in titanrl.names(kind):
        of_name = [table for table in golden if table["name"] == name]
        with suppress(titanrl.ConfigError):
            titanrl.build(kind, {"name": name})
            of_name.insert(0, {"name": name})
        assert of_name, f"{kind} {name!r} has required keys: give tests/golden/{kind}.json a case."
        found += [table for i, table in enumerate(of_name) if table not in of_name[:i]]
    return found


def label(table: dict[str, Any]) -> str:
    """Returns a short test id of a table."""
    return "-".join([table["name"], *(f"{key}={value}" for key, value in table.items() if key != "name")])


@dataclass(frozen=True)
class Shape:
    """Sizes and seed of a random batch."""

    sizes: tuple[int, ...]
    """Rows of each group."""
    length: int
    seed: int
    density: float
    """Probability that a token is a loss token: rows have holes, and some rows have no loss token."""


shapes = st.builds(
    Shape,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    length=st.integers(1, 9),
    seed=st.integers(0, 9999),
    density=st.sampled_from([0.3, 0.8, 1.0]),
)


def scored_batch(shape: Shape) -> TensorDict:
    """Returns a batch with every key that stage `score` may write, and an advantage for the corrections."""
    generator = torch.Generator().manual_seed(shape.seed)
    rows, length = sum(shape.sizes), shape.length

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    def reward() -> torch.Tensor:
        return torch.tensor(VALUES)[torch.randint(len(VALUES), (rows,), generator=generator)]

    mask = torch.rand(rows, length, generator=generator) < shape.density
    old = -normal(rows, length).abs() - 0.01
    batch = TensorDict(
        {
            "loss_mask": mask,
            "group_id": 7 * torch.arange(len(shape.sizes)).repeat_interleave(torch.tensor(shape.sizes)) - 3,
            "finish_reason": torch.randint(0, 3, (rows,), generator=generator).to(torch.int8),
            "agent_id": torch.randint(0, 2, (rows,), generator=generator),
            "reward": reward(),
            "baseline_reward": reward(),
            "rewards": {name: reward() for name in REWARDS},
            "token_reward": 0.3 * normal(rows, length),
            "value": normal(rows, length),
            "final_value": normal(rows),
            "old_logprob": old,
            "sampler_logprob": old + 0.3 * normal(rows, length),
            "teacher_logprob": old + 0.3 * normal(rows, length),
            "ref_logprob": old + 0.3 * normal(rows, length),
            "sum_pi_squared": 0.2 + 0.7 * torch.rand(rows, length, generator=generator),
            "old_entropy": normal(rows, length).abs(),
            "advantage": torch.where(mask, normal(rows, 1).expand(rows, length), 0.0),
        },
        batch_size=[rows],
    )
    return batch.update(
        {
            "prompt_id": batch["group_id"] // 2,
            "prompt_drift": 0.1 * torch.rand(rows, generator=generator),
            "episode_id": torch.randint(0, 3, (rows,), generator=generator),
            "turn_id": torch.randperm(rows, generator=generator),
            "state_id": torch.randint(0, 3, (rows,), generator=generator),
            "step_reward": reward(),
        }
    )


TOKEN_KEYS = (
    "token_reward",
    "value",
    "old_logprob",
    "sampler_logprob",
    "teacher_logprob",
    "ref_logprob",
    "sum_pi_squared",
    "old_entropy",
)
"""Keys whose values at masked positions are undefined."""


def with_garbage(batch: TensorDict, garbage: float) -> TensorDict:
    """Returns the batch with ``garbage`` in every place that nothing is promised of."""
    mask = batch["loss_mask"]
    return batch.copy().update({key: torch.where(mask, batch[key], garbage) for key in TOKEN_KEYS})


def with_holes(batch: TensorDict, garbage: float, seed: int) -> tuple[TensorDict, torch.Tensor]:
    """Returns the batch with masked columns put in row by row, and [N, L] the new column of each place."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = batch["loss_mask"].shape
    wider = length + 4
    places = torch.stack(
        [torch.randperm(wider, generator=generator)[:length].sort().values for _ in range(rows)]
    )
    moved = batch.copy()
    for key in ("loss_mask", "advantage", *TOKEN_KEYS):
        empty = {"loss_mask": False, "advantage": 0.0}.get(key, garbage)
        wide = torch.full((rows, wider), empty, dtype=batch[key].dtype)
        moved[key] = wide.scatter(1, places, batch[key])
    return moved, places


def permutations(batch: TensorDict, seed: int) -> torch.Tensor:
    """Returns a random order of the rows, which takes groups apart."""
    return torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))


def only(batch: TensorDict, keys: tuple[Any, ...]) -> TensorDict:
    """Returns a batch that holds the given keys and nothing else."""
    return batch.select(*keys)


def assert_round_trips(kind: str, table: dict[str, Any]) -> None:
    """Checks that the component of ``table`` survives pickle, and its settings TOML."""
    component = titanrl.build(kind, table)
    assert pickle.loads(pickle.dumps(component)) == component
    settings_of = {field.name: getattr(component, field.name) for field in fields(component) if field.init}
    written = {key: list(value) if isinstance(value, tuple) else value for key, value in settings_of.items()}
    chosen = {key: value for key, value in written.items() if value is not None}
    text = tomli_w.dumps({"name": table["name"], **chosen})
    assert titanrl.build(kind, tomllib.loads(text)) == component
