"""Metrics of several responses to one prompt: pass@k, best of k, maj@k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

__all__ = ["best_of_k", "maj_at_k", "k_values", "pass_at_k"]


def k_values(samples: int) -> list[int]:
    """Returns the k reported for ``samples`` responses: the powers of two from 2, and ``samples``."""
    return [*(2**power for power in range(1, samples.bit_length()) if 2**power < samples), samples]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the unbiased probability that one of ``k`` responses is correct: ``1 - C(n-c, k) / C(n, k)``.

    Source: Chen et al., arXiv 2107.03374.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def best_of_k(values: Sequence[float], scores: Sequence[float], k: int) -> float:
    """Returns the expected score of the response with the highest value among ``k`` of the n responses.

        sum_i s_(i) C(n - i, k - 1) / C(n, k),  s_(i) = score of the response with the i-th highest value

    Unbiased like pass@k, which it equals where the values are the scores and are 0 or 1. Ties are broken
    uniformly.

    Args:
        values: value of each response, by which the best is selected, n.
        scores: score of each response, n.
        k: number of responses to select from, in [1, n].
    """
    n = len(values)
    tied: dict[float, list[float]] = {}
    for value, score in zip(values, scores, strict=True):
        tied.setdefault(value, []).append(score)
    ranked = [sum(group) / len(group) for value, group in sorted(tied.items(), reverse=True) for _ in group]
    return sum(score * math.comb(n - i, k - 1) for i, score in enumerate(ranked, 1)) / math.comb(n, k)


def maj_at_k(votes: Sequence[Hashable | None], scores: Sequence[float]) -> float:
    """Returns the mean score of the responses that give the most frequent answer; ties give the mean of all.

    Args:
        votes: answer extracted from each response, None where there is none; without any vote, the result is
            the mean of ``scores``.
        scores: score of each response.

    Source: self-consistency, arXiv 2203.11171.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return sum(scores) / len(scores)
    most = max(counts.values())
    majority_scores = [score for vote, score in zip(votes, scores, strict=True) if counts.get(vote) == most]
    return sum(majority_scores) / len(majority_scores)
