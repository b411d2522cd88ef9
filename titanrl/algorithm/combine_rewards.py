"""The reward of a row from the values of its reward functions: sum, product, minimum and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from titanrl.ops.groups import relative_to_group

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CombinedTerm", "combine_rewards", "normalized"]

EPS = 1e-6
"""Added to the standard deviation by which values are divided."""


class CombinedTerm(Protocol):
    """The part of a `[[reward]]` table that says how its value enters the reward."""

    @property
    def label(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def combine(self) -> str: ...
    @property
    def gate_min(self) -> float: ...
    @property
    def gate_reward(self) -> float: ...
    @property
    def normalize(self) -> str: ...


def combine_rewards(values: Mapping[str, Tensor], terms: Sequence[CombinedTerm]) -> Tensor:
    """Returns [N] float32 rewards; NaN where a value that decides the reward is NaN.

        s = sum of w_k r_k over the terms "sum"; 1 without such a term
        p = s * product of w_k r_k over the terms "product"
        m = min(p, w_k r_k over the terms "minimum"); without "sum" and "product", the minimum alone
        reward = gate_reward of the first gate with r_k < gate_min, else m

    A term of weight 0 in the sum is reported only. A closed gate needs no other value.

    Args:
        values: label -> [N] value of the reward function.
        terms: the [[reward]] tables, in their order.
    """
    by_kind: dict[str, list[CombinedTerm]] = {}
    for term in terms:
        by_kind.setdefault(term.combine, []).append(term)
    sums, products = by_kind.get("sum", []), by_kind.get("product", [])
    minima, gates = by_kind.get("minimum", []), by_kind.get("gate", [])
    num_rows = len(next(iter(values.values()))) if values else 0
    reward = torch.zeros(num_rows) if sums else torch.ones(num_rows)
    for term in sums:
        if term.weight != 0:
            reward = reward + term.weight * values[term.label]
    for term in products:
        reward = reward * (term.weight * values[term.label])
    for position, term in enumerate(minima):
        value = term.weight * values[term.label]
        reward = torch.minimum(reward, value) if sums or products or position else value
    for term in reversed(gates):
        value = values[term.label]
        reward = torch.where(value < term.gate_min, term.gate_reward, reward)
        reward = torch.where(value.isnan(), torch.nan, reward)
    return reward.float()


def normalized(
    values: Mapping[str, Tensor], group_id: Tensor, terms: Sequence[CombinedTerm]
) -> dict[str, Tensor]:
    """Returns the values with mean 0 and standard deviation 1 where a term normalizes them.

        (r - mean) / (std + 1e-6),  0 where all values are equal

    over the rows of a group or of the batch; rows whose value is NaN are left out and stay NaN.

    Args:
        values: label -> [N] value of the reward function.
        group_id: [N].
        terms: the [[reward]] tables.
    """
    result = dict(values)
    for term in terms:
        if term.normalize != "none":
            value = values[term.label]
            rows = group_id if term.normalize == "group" else torch.zeros_like(group_id)
            scaled = relative_to_group(value, rows, "group", EPS).float()
            result[term.label] = torch.where(value.isnan(), torch.nan, scaled)
    return result
