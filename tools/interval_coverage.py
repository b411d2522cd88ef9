"""Simulated coverage of the 95% intervals of held-out scores: a table for docs/evaluate.md.

``python -m tools.interval_coverage`` prints, for kinds of scores, true means and numbers of prompts, the
share of intervals that contain the true value.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from titanrl.eval.intervals import difference_interval, mean_interval

__all__ = ["SCORES", "coverage", "difference_coverage"]

Scores = Callable[[random.Random, float, int], list[float]]


def binary(rng: random.Random, mean: float, count: int) -> list[float]:
    """Scores of 0 and 1."""
    return [float(rng.random() < mean) for _ in range(count)]


def shaped(rng: random.Random, mean: float, count: int) -> list[float]:
    """Half of the mean comes from scores of 1, the other half from partial credit of every other response."""
    share = mean / 2
    partial = (mean - share) / (1 - share)
    low, high = max(2 * partial - 1, 0.0), min(2 * partial, 1.0)
    return [1.0 if rng.random() < share else rng.uniform(low, high) for _ in range(count)]


def means(rng: random.Random, mean: float, count: int) -> list[float]:
    """Means of eight binary responses to prompts of different difficulty."""
    values = []
    for _ in range(count):
        difficulty = rng.betavariate(mean, 1 - mean)
        values.append(sum(rng.random() < difficulty for _ in range(8)) / 8)
    return values


SCORES: dict[str, Scores] = {"binary": binary, "shaped": shaped, "means of 8": means}


def coverage(scores: Scores, mean: float, count: int, *, trials: int, seed: int = 0) -> float:
    """Returns the share of intervals that contain the true mean.

    Args:
        scores: draws the scores.
        mean: the true mean, in (0, 1).
        count: number of prompts.
        trials: number of intervals.
        seed: of the draws.
    """
    rng, hits = random.Random(seed), 0
    for _ in range(trials):
        low, high = mean_interval(scores(rng, mean, count))
        hits += low <= mean <= high
    return hits / trials


def difference_coverage(difference: float, count: int, *, trials: int, seed: int = 0) -> float:
    """Returns the share of intervals that contain the true difference of two binary models.

    They agree on most prompts: they differ on 4% of them, and on more only where the difference needs it.
    """
    rng, hits = random.Random(seed), 0
    discordant = max(0.04, difference)
    for _ in range(trials):
        values = []
        for _ in range(count):
            sign = 1.0 if rng.random() < (discordant + difference) / (2 * discordant) else -1.0
            values.append(sign if rng.random() < discordant else 0.0)
        low, high = difference_interval(values)
        hits += low <= difference <= high
    return hits / trials


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=500)
    trials = parser.parse_args().trials
    counts = (20, 68, 200, 500)
    print(f"| scores | true mean | {' | '.join(f'{count} prompts' for count in counts)} |")
    print(f"|---|---|{'---|' * len(counts)}")
    for name, scores in SCORES.items():
        for mean in (0.01, 0.05, 0.5, 0.95, 0.99):
            cells = [f"{coverage(scores, mean, count, trials=trials):.3f}" for count in counts]
            print(f"| {name} | {mean} | {' | '.join(cells)} |", flush=True)
    for difference in (0.0, 0.02, 0.1):
        cells = [f"{difference_coverage(difference, count, trials=trials):.3f}" for count in counts]
        print(f"| difference of two models | {difference} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
