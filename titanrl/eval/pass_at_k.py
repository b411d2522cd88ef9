"""What several answers to one prompt say together: pass@k, best of k, majority vote. Plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

__all__ = ["best_of_k", "maj_at_k", "k_values", "pass_at_k"]


def k_values(samples: int) -> list[int]:
    """Returns the k for which k of ``samples`` answers are looked at: powers of two from 2, and all."""
    return [*(2**power for power in range(1, samples.bit_length()) if 2**power < samples), samples]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the unbiased chance that one of ``k`` answers is right: ``1 - C(n-c, k) / C(n, k)``.

    Source: Chen et al., arXiv 2107.03374.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def best_of_k(values: Sequence[float], scores: Sequence[float], k: int) -> float:
    """Returns the score to expect of the answer with the highest value among ``k`` drawn of the n answers.

        sum_i s_(i) C(n - i, k - 1) / C(n, k),  s_(i) = score of the answer with the i-th highest value

    Unbiased, as pass@k is, which it equals where values are scores of 0 or 1. Of equal values each is as
    likely.

    Args:
        values: by which is chosen, n. scores: what the choice is worth, n. k: in [1, n].
    """
    n = len(values)
    tied: dict[float, list[float]] = {}
    for value, score in zip(values, scores, strict=True):
        tied.setdefault(value, []).append(score)
    ranked = [sum(group) / len(group) for value, group in sorted(tied.items(), reverse=True) for _ in group]
    return sum(score * math.comb(n - i, k - 1) for i, score in enumerate(ranked, 1)) / math.comb(n, k)


def maj_at_k(votes: Sequence[Hashable | None], scores: Sequence[float]) -> float:
    """Returns the mean score of the answers that voted for what most did; of several such, the mean of all.

    Args:
        votes: what each answer says, None where it says nothing; nobody's vote leaves the mean of ``scores``.

    Source: self-consistency, arXiv 2203.11171.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return sum(scores) / len(scores)
    most = max(counts.values())
    won = [score for vote, score in zip(votes, scores, strict=True) if counts.get(vote) == most]
    return sum(won) / len(won)
