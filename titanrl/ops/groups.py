"""Statistics of scores group by group: any order of rows, any group size, unscored rows left out, float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["GroupScores", "group_index", "segment_sum"]


def group_index(group_id: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns ([N] int64 index of each row's group in 0 .. P-1, P) for ids [N] of any value and order."""
    found, index = torch.unique(group_id, return_inverse=True)
    return index, found.numel()


def segment_sum(x: torch.Tensor, index: torch.Tensor, num: int) -> torch.Tensor:
    """Returns [P, ...] the sums of the rows of ``x`` [N, ...] with equal ``index`` [N]."""
    return x.new_zeros((num, *x.shape[1:])).index_add_(0, index, x)


@dataclass(frozen=True, slots=True)
class GroupScores:
    """One score a row, seen group by group. Statistics come back as [N], each row's own group's value.

    A row whose score is NaN is unscored: it is in no statistic, and ``comparable`` is false for it.
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
    """[N] float64, least score of the group; inf when it has none."""
    high: torch.Tensor
    """[N] float64, greatest score of the group; -inf when it has none."""

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

        Decided by max > min: a mean of equal floats need not equal them, and a tolerance would erase small
        true spreads.
        """
        return self.scored & (self.high > self.low)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [N] the sum of ``x`` [N] over the scored rows of each row's group, float64."""
        return segment_sum(torch.where(self.scored, x.double(), 0.0), self.index, self.num)[self.index]

    def mean(self) -> torch.Tensor:
        """Returns [N] the group's mean score; 0 when it has none."""
        return self.sum(self.score) / self.count.clamp_min(1)

    def std(self, unbiased: bool = True) -> torch.Tensor:
        """Returns [N] the group's standard deviation, over n - 1 or n; 0 for fewer than two scored rows."""
        squares = self.sum((self.score - self.mean()).square())
        return (squares / (self.count - int(unbiased)).clamp_min(1)).sqrt()

    def mean_of_others(self) -> torch.Tensor:
        """Returns [N] the mean score of the other rows of the group; 0 when there are none."""
        return (self.sum(self.score) - self.score) / (self.count - 1).clamp_min(1)

    def std_of_others(self, unbiased: bool = True) -> torch.Tensor:
        """Returns [N] the standard deviation of the group's other rows; exactly 0 when they are all equal."""
        deviation = self.score - self.mean()
        squares = self.sum(deviation.square()) - deviation.square() * self.count / (self.count - 1).clamp_min(
            1
        )
        # That difference cancels for a row that holds nearly all of the spread: sum again without that row.
        farthest = self.first_of(deviation.abs())
        centre = self.sum(torch.where(farthest, 0.0, self.score)) / (self.count - 1).clamp_min(1)
        again = self.sum(torch.where(farthest, 0.0, (self.score - centre).square()))
        squares = torch.where(farthest, again, squares).clamp_min(0)
        variance = squares / (self.count - 1 - int(unbiased)).clamp_min(1)
        return torch.where(self._others_equal(), 0.0, variance.sqrt())

    def first_of(self, key: torch.Tensor) -> torch.Tensor:
        """Returns [N] bool, true for the first scored row of each group with the greatest ``key`` [N]."""
        key = torch.where(self.scored, key.double(), -torch.inf)
        best = key.new_full((self.num,), -torch.inf).scatter_reduce_(0, self.index, key, "amax")
        rows = torch.arange(key.numel(), device=key.device)
        candidate = torch.where(self.scored & (key == best[self.index]), rows, key.numel())
        first = rows.new_full((self.num,), key.numel()).scatter_reduce_(0, self.index, candidate, "amin")
        return rows == first[self.index]

    def _others_equal(self) -> torch.Tensor:
        at_low = self.sum((self.score == self.low).double())
        at_high = self.sum((self.score == self.high).double())
        rest = self.count - 1
        odd_one = ((self.score == self.low) & (at_high >= rest)) | (
            (self.score == self.high) & (at_low >= rest)
        )
        return odd_one | (self.low == self.high)
