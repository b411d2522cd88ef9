"""Held-out score of the current policy, with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from titanrl.loop.answering import judged_answers

if TYPE_CHECKING:
    from titanrl.loop.session import Session

__all__ = ["evaluate", "interval", "pass_at_k"]

Z95 = 1.959964


def evaluate(session: Session[Any]) -> dict[str, float]:
    """Returns ``eval/score`` with its interval over the held-out prompts, the same ones at every call.

    The score is the raw value of the judging reward, never the shaped sum; the means of all rewards stand
    beside it. Where each prompt has several answers and the score is right or wrong, so does
    ``eval/pass_at_<k>``, for k the powers of two and the number of answers.
    """
    settings = session.experiment.evaluation
    assert settings is not None
    assert session.held_out is not None
    session.held_out.load_state_dict({"position": 0})
    count = min(settings.num_prompts, len(session.held_out.source))
    rows = session.held_out.take(count, settings.samples_per_prompt)
    answers = judged_answers(
        session, rows, step=0, seed=session.seed + 1, temperature=settings.temperature or None,
        greedy=settings.temperature == 0,
    )  # fmt: skip
    judge = settings.reward or session.experiment.reward[0].label
    scores = [answer.rewards[judge] for answer in answers]
    low, high = interval(scores)
    labels = [each.label for each in session.experiment.reward]
    means = {
        f"eval/reward_{label}_mean": sum(answer.rewards[label] for answer in answers) / len(answers)
        for label in labels
    }
    return {
        "eval/score": sum(scores) / len(scores),
        "eval/score_low": low,
        "eval/score_high": high,
        "eval/num_prompts": float(count),
        **_passes(scores, settings.samples_per_prompt),
        **means,
        "eval/response_tokens_mean": sum(answer.tokens for answer in answers) / len(answers),
    }


def _passes(scores: Sequence[float], samples: int) -> dict[str, float]:
    """Returns the mean of pass@k over the prompts, by metric name.

    Args:
        scores: those of each prompt's ``samples`` answers, prompt by prompt.
    """
    if samples == 1 or not set(scores) <= {0.0, 1.0}:
        return {}
    correct = [int(sum(scores[start : start + samples])) for start in range(0, len(scores), samples)]
    numbers = [*(2**power for power in range(1, samples.bit_length()) if 2**power < samples), samples]
    return {
        f"eval/pass_at_{k}": sum(pass_at_k(samples, each, k) for each in correct) / len(correct)
        for k in numbers
    }


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of the mean of ``scores``, each in [0, 1] or any finite number.

    Right-or-wrong scores get Wilson's interval, which holds at 0 and 1 too; others the mean +- 1.96 standard
    errors.
    """
    n = len(scores)
    mean = sum(scores) / n
    if set(scores) <= {0.0, 1.0}:
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n))
        return max(centre - half, 0.0), min(centre + half, 1.0)
    if n == 1:
        return -math.inf, math.inf
    error = math.sqrt(sum((score - mean) ** 2 for score in scores) / (n - 1) / n)
    return mean - Z95 * error, mean + Z95 * error


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the unbiased chance that one of ``k`` answers is right: ``1 - C(n-c, k) / C(n, k)``.

    Source: Chen et al., arXiv 2107.03374.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
