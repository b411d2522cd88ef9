"""combine_rewards: sum, product, minimum, gates and normalization, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch

from titanrl import ConfigError
from titanrl.algorithm.combine_rewards import combine_rewards, normalized
from titanrl.config.tables import Reward
from titanrl.registry.decode import Flattened, decode


@dataclass(frozen=True)
class Term:
    """The part of a [[reward]] table that combine_rewards reads."""

    label: str
    combine: str = "sum"
    weight: float = 1.0
    gate_min: float = 0.5
    gate_reward: float = 0.0
    normalize: str = "none"


def combined(values: dict[str, list[float]], *terms: Term) -> list[float]:
    tensors = {label: torch.tensor(value) for label, value in values.items()}
    return [round(value, 5) for value in combine_rewards(tensors, terms).tolist()]


A, B = [1.0, 2.0, 0.0], [0.5, -1.0, 3.0]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([Term("a"), Term("b", weight=2.0)], [2.0, 0.0, 6.0]),
        ([Term("a"), Term("b", "product", weight=2.0)], [1.0, -4.0, 0.0]),
        ([Term("a", "product"), Term("b", "product")], [0.5, -2.0, 0.0]),
        ([Term("a"), Term("b", "minimum")], [0.5, -1.0, 0.0]),
        ([Term("a", "minimum", weight=3.0), Term("b", "minimum")], [0.5, -1.0, 0.0]),
        ([Term("a"), Term("b", "gate", gate_reward=-5.0)], [1.0, -5.0, 0.0]),
        ([Term("a", "gate", gate_reward=-1.0), Term("b", "gate", gate_reward=-2.0)], [1.0, -2.0, -1.0]),
        ([Term("a", "gate", gate_min=1.0), Term("b")], [0.5, -1.0, 0.0]),
    ],
    ids=["sum", "product", "products", "minimum", "minima", "gate", "first_gate", "gate_min"],
)
def test_combination_by_hand(terms: list[Term], expected: list[float]) -> None:
    assert combined({"a": A, "b": B}, *terms) == expected


def test_missing_value_makes_a_row_unscored_unless_it_decides_nothing() -> None:
    """A closed gate needs no other value, and a weight of 0 reports only."""
    values = {"a": [1.0, math.nan, math.nan], "b": [math.nan, 0.0, 1.0]}
    rewards = combined(values, Term("a"), Term("b", "gate", gate_reward=-1.0))
    assert math.isnan(rewards[0])
    assert rewards[1] == -1.0
    assert math.isnan(rewards[2])
    assert combined({"a": [1.0], "b": [math.nan]}, Term("a"), Term("b", weight=0.0)) == [1.0]


def test_values_are_normalized_within_the_group_or_the_batch() -> None:
    """The standard deviation is over n - 1; missing values are left out; equal values become 0."""
    group_id = torch.tensor([7, 3, 7, 3, 3])
    values = {"a": torch.tensor([2.0, 5.0, 4.0, math.nan, 5.0]), "b": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])}
    result = normalized(values, group_id, [Term("a", normalize="group"), Term("b", normalize="batch")])
    half = 1 / math.sqrt(2)
    expected = torch.tensor([-half, 0.0, half, math.nan, 0.0])
    assert torch.allclose(result["a"], expected, atol=1e-5, equal_nan=True)
    expected = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]) / math.sqrt(2.5)
    assert torch.allclose(result["b"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"combine": "gate", "weight": 2.0}, "weight is not used with combine = 'gate', got 2.0"),
        ({"combine": "gate", "normalize": "group"}, "normalize is not used with combine = 'gate'"),
        ({"gate_min": 0.1}, "gate_min and gate_reward need combine = 'gate', got 'sum'"),
        ({"combine": "maximum"}, "combine must be 'sum', 'product'"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        decode(Annotated[Reward, Flattened("reward")], {"name": "unfinished", **keys})
