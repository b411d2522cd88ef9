"""Statistics of scores per group, in float64, for any order of rows and any group size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

__all__ = ["GroupScores", "Std", "group_index", "relative_to_group", "segment_sum"]

Std: TypeAlias = Literal["group", "batch", "leave_one_out", "none"]
"""Rows over which a standard deviation is taken; none: no division."""


def group_index(group_id: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns ([N] int64 index of each row's group in 0 .. P-1, P) for ids [N] of any value and order."""
    ids, index = torch.unique(group_id, return_inverse=True)
    return index, ids.numel()


def segment_sum(x: torch.Tensor, index: torch.Tensor, num: int) -> torch.Tensor:
    """Returns [P, ...] the sums of the rows of ``x`` [N, ...] with equal ``index`` [N]."""
    return x.new_zeros((num, *x.shape[1:])).index_add_(0, index, x)


@dataclass(frozen=True, slots=True)
class GroupScores:
    """One score per row, with statistics of its group. A statistic is [N], each row's group's value.

    A row whose score is NaN is unscored: it is part of no statistic, and ``comparable`` is false for it.
    """

    score: torch.Tensor
    """[N] float64, 0 where unscored."""
    scored: torch.Tensor
    """[N] bool."""
    index: torch.Tensor
    """[N] int64, 0 .. num - 1."""
    num: int
    """Number of groups P."""
    count: torch.Tensor
    """[N] float64, scored rows of the row's group."""
    low: torch.Tensor
    """[N] float64, smallest score of the group; inf if it has none."""
    high: torch.Tensor
    """[N] float64, largest score of the group; -inf if it has none."""

    @classmethod
    def of(cls, score: torch.Tensor, group_id: torch.Tensor) -> GroupScores:
        """Returns the scores [N] (NaN: unscored) of the groups of ``group_id`` [N]."""
        index, num = group_index(group_id)
        scored = ~score.isnan()
        value = torch.where(scored, score.double(), 0.0)
        count = segment_sum(scored.double(), index, num)
        low = value.new_full((num,), torch.inf)
        low.scatter_reduce_(0, index, torch.where(scored, value, torch.inf), "amin")
        high = value.new_full((num,), -torch.inf)
        high.scatter_reduce_(0, index, torch.where(scored, value, -torch.inf), "amax")
        return cls(value, scored, index, num, count[index], low[index], high[index])

    @property
    def comparable(self) -> torch.Tensor:
        """[N] bool: the row is scored and its group's scores differ; never true in a group of one.

        Decided by max > min: a mean of equal floats need not equal them, and a tolerance would hide small
        true differences.
        """
        return self.scored & (self.high > self.low)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [N] the sum of ``x`` [N] over the scored rows of each row's group, float64."""
        return segment_sum(torch.where(self.scored, x.double(), 0.0), self.index, self.num)[self.index]

    def mean(self) -> torch.Tensor:
        """Returns [N] the group's mean score; 0 if it has none."""
        return self.sum(self.score) / self.count.clamp_min(1)

    def std(self, unbiased: bool = True) -> torch.Tensor:
        """Returns [N] the group's standard deviation, over n - 1 or n; 0 for fewer than two scored rows."""
        sum_squares = self.sum((self.score - self.mean()).square())
        return (sum_squares / (self.count - int(unbiased)).clamp_min(1)).sqrt()

    def mean_of_others(self) -> torch.Tensor:
        """Returns [N] the mean score of the other rows of the group; 0 if there are none."""
        return (self.sum(self.score) - self.score) / (self.count - 1).clamp_min(1)

    def std_of_others(self, unbiased: bool = True) -> torch.Tensor:
        """Returns [N] the standard deviation of the group's other rows; exactly 0 when they are all equal."""
        centered, others = self.score - self.mean(), (self.count - 1).clamp_min(1)
        sum_squares = self.sum(centered.square()) - centered.square() * self.count / others
        # That difference cancels for a row that has nearly all of the variance: sum again without that row.
        farthest = self.first_of(centered.abs())
        mean = self.sum(torch.where(farthest, 0.0, self.score)) / others
        direct = self.sum(torch.where(farthest, 0.0, (self.score - mean).square()))
        sum_squares = torch.where(farthest, direct, sum_squares).clamp_min(0)
        variance = sum_squares / (self.count - 1 - int(unbiased)).clamp_min(1)
        return torch.where(self._others_equal(), 0.0, variance.sqrt())

    def first_of(self, key: torch.Tensor) -> torch.Tensor:
        """Returns [N] bool, true for the first scored row of each group with the largest ``key`` [N]."""
        key = torch.where(self.scored, key.double(), -torch.inf)
        best = key.new_full((self.num,), -torch.inf).scatter_reduce_(0, self.index, key, "amax")
        rows = torch.arange(key.numel(), device=key.device)
        candidate = torch.where(self.scored & (key == best[self.index]), rows, key.numel())
        first = rows.new_full((self.num,), key.numel()).scatter_reduce_(0, self.index, candidate, "amin")
        return rows == first[self.index]

    def _others_equal(self) -> torch.Tensor:
        at_low = self.sum((self.score == self.low).double())
        at_high = self.sum((self.score == self.high).double())
        others = self.count - 1
        is_outlier = ((self.score == self.low) & (at_high >= others)) | (
            (self.score == self.high) & (at_low >= others)
        )
        return is_outlier | (self.low == self.high)


def relative_to_group(
    score: torch.Tensor,
    group_id: torch.Tensor,
    std: Std,
    eps: float,
    *,
    leave_one_out: bool = False,
    unbiased: bool = True,
) -> torch.Tensor:
    """Returns [N] float64 ``(s - b) / (sd + eps)``; exactly 0 where there is nothing to compare.

    That is a group of one, a group of equal scores and an unscored row.

    Args:
        score: [N], NaN where unscored.
        group_id: [N], any order.
        std: rows of sd; with leave_one_out there is no division where the other scores are all equal.
        eps: added to sd.
        leave_one_out: whether b is the mean of the other rows of the group, instead of the whole group.
        unbiased: whether variances are divided by n - 1.
    """
    groups = GroupScores.of(score, group_id)
    advantage = groups.score - (groups.mean_of_others() if leave_one_out else groups.mean())
    if std == "group":
        advantage = advantage / (groups.std(unbiased) + eps)
    elif std == "batch":
        batch = GroupScores.of(score, torch.zeros_like(group_id))
        advantage = advantage / (batch.std(unbiased) + eps)
    elif std == "leave_one_out":
        others = groups.std_of_others(unbiased)
        advantage = advantage / torch.where(others == 0, 1.0, others + eps)
    return torch.where(groups.comparable, advantage, 0.0)
