"""PKPO: credit for the best of k responses, an unbiased gradient of max@k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "pkpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class PKPO:
    """Credit of a row for the best of k responses, minus a baseline, on its loss tokens, [N, L].

        A_i = n (c_i - b_i)
        c_i = (1 / C(n, k)) sum over the k-subsets S of the group that contain i of max_S r
        b_i:  loo_minus_one  the same sum of max_(S without i) r
              loo            mean of c_j over the other rows, each in the group without i
              none           0

    n is the number of scored rows of the group. Rewards may be continuous; with binary ones, max@k is
    pass@k. k = 1 with a baseline is rloo. At n = k, loo is loo_minus_one. A group with fewer than k scored
    rows or with equal rewards and an unscored row (NaN) give 0. Masked positions get 0. Computed from sorted
    rewards in O(n log n).

    Source: PKPO 2505.15201, eq. 19, 29 and 33. Deviation: the factor n, which makes k = 1 equal to rloo.
    """

    k: Annotated[int, Range("[1, inf)")] = 2
    """Number of responses of which the best one counts."""
    baseline: Literal["loo_minus_one", "loo", "none"] = "loo_minus_one"
    """Baseline; loo_minus_one has the lowest variance in the paper."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        advantage = torch.zeros_like(groups.score)
        eligible = groups.comparable & (groups.count >= self.k)
        for index in sorted(set(groups.index[eligible].tolist())):
            rows = (eligible & (groups.index == index)).nonzero()[:, 0]
            rows = rows[groups.score[rows].argsort(stable=True)]
            advantage[rows] = self._of_sorted(groups.score[rows])
        return Advantages(to_tokens(advantage, batch["loss_mask"]))

    def _of_sorted(self, reward: torch.Tensor) -> torch.Tensor:
        """Returns [n] the advantages of ascending rewards [n], n >= 2, n >= k."""
        n, k = len(reward), self.k
        if k == 1 and self.baseline != "none":
            return reward - (reward.sum() - reward) / (n - 1)
        # Probability that the best of k of the n rows is the one of rank j: C(j - 1, k - 1) / C(n, k).
        best = _probability_of_best(n, k)
        if self.baseline == "loo_minus_one" or (self.baseline == "loo" and n == k):
            steps = torch.diff(reward, prepend=reward[:1])
            return n * (steps * best).cumsum(0)
        # Given that row i is in the subset and j > i is its best: C(j - 2, k - 2) / C(n, k).
        rank = torch.arange(1, n + 1, dtype=torch.float64)
        pair = best * (k - 1) / (rank - 1).clamp_min(1)
        credit = best * reward + _sum_after(pair * reward)
        if self.baseline == "none":
            return n * credit
        others = _probability_of_best(n - 1, k)
        before = (torch.nn.functional.pad(others, (0, 1)) * reward).cumsum(0).roll(1)
        before[0] = 0.0
        after = _sum_after(torch.nn.functional.pad(others, (1, 0)) * reward)
        return n * (credit - k / (n - 1) * (before + after))


def _probability_of_best(n: int, k: int) -> torch.Tensor:
    """Returns [n] float64 ``C(j - 1, k - 1) / C(n, k)`` for j = 1 .. n; they sum to 1."""
    rank = torch.arange(1, n, dtype=torch.float64)
    ratio = ((rank - k + 1) / rank).clamp_min(0).flip(0)
    return torch.cat([torch.tensor([k / n], dtype=torch.float64), k / n * ratio.cumprod(0)]).flip(0)


def _sum_after(x: torch.Tensor) -> torch.Tensor:
    """Returns [n] the sum of the later entries of ``x`` [n]."""
    return x.flip(0).cumsum(0).flip(0) - x
