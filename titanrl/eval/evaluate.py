"""Held-out scores of a policy with their 95% intervals: during training, and of any model by itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.data.prompts import held_out_prompts
from titanrl.errors import ConfigError
from titanrl.eval.pass_at_k import best_of_k, k_values, maj_at_k, pass_at_k
from titanrl.rollout.generator import generate_and_score, load_generator

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.data.prompts import PromptLoader
    from titanrl.rollout.generator import Generator
    from titanrl.training.session import Session

__all__ = ["MeanCI", "EvalResult", "evaluate", "evaluate_model", "interval"]

Z95 = 1.959964


class MeanCI(NamedTuple):
    """A mean over prompts and its 95% interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """Returns plain values; an interval that one prompt leaves open has none."""
        return {key: value if math.isfinite(value) else None for key, value in self._asdict().items()}


class EvalResult(NamedTuple):
    """What a model is worth on held-out prompts."""

    model: str
    """Its folder, or the run's."""
    num_prompts: int
    failures: int
    """Scores that are a reward's ``failure_score``, as it could not judge."""
    reasons: dict[str, str]
    """Label of each reward that failed -> why it did the first time."""
    estimates: dict[str, MeanCI]
    """By the name of the metric without ``eval/``; the score comes first."""
    scores: Sequence[float]
    """Of each prompt, the mean over its answers."""
    prompts: Sequence[Hashable]
    """What each is equal by."""

    def less(self, other: EvalResult) -> MeanCI:
        """Returns the mean difference of the scores, prompt by prompt; both were asked the same prompts.

        Prompts that are hard for both cancel, so it is known better than either score.
        """
        values = [mine - its for mine, its in zip(self.scores, other.scores, strict=True)]
        return MeanCI(sum(values) / len(values), *_clustered_interval(values, self.prompts))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        plain = {name: estimate.to_json() for name, estimate in self.estimates.items()}
        counts = {"num_prompts": self.num_prompts, "reward_failures": self.failures}
        return {"model": self.model, **counts, "reward_failure_reasons": self.reasons, **plain}


def evaluate(session: Session[Any]) -> dict[str, float]:
    """Returns ``eval/score`` with its interval over the held-out prompts, the same ones at every call.

    The score is the raw value of the judging reward, never the shaped sum; the means of all rewards stand
    beside it. Several answers to each prompt also give ``eval/pass_at_<k>`` where the score is right or
    wrong, ``eval/best_of_<k>`` by the [evaluation] best_of_reward, and ``eval/maj_at_<n>`` where the judge
    can tell what an answer says; k are the powers of two and the number of answers.
    """
    assert session.held_out is not None
    verdict = _verdict(session, session.held_out)
    session.reasons = verdict.reasons | session.reasons
    score = verdict.estimates["score"]
    return {
        **{f"eval/{name}": estimate.mean for name, estimate in verdict.estimates.items()},
        "eval/score_low": score.low,
        "eval/score_high": score.high,
        "eval/num_prompts": float(verdict.num_prompts),
        "eval/reward_failures": float(verdict.failures),
    }


def evaluate_model(experiment: Experiment, run: Path | None = None) -> EvalResult:
    """Returns the held-out scores of a model that isn't trained, on every rank.

    Args:
        experiment: a checked one with [evaluation.prompts]. run: folder of the run whose newest checkpoint is
            judged; None: the weights are those of [model] path.

    Raises:
        ConfigError: there are no held-out prompts, or no whole checkpoint.
    """
    from titanrl.engine import init_distributed

    if experiment.evaluation is None or experiment.evaluation.prompts is None:
        raise ConfigError(
            "[evaluation.prompts] is missing; evaluate a file with held-out prompts, [sampler] and "
            "[[reward]], and name the model or run that it shall judge by --model."
        )
    init_distributed()
    with closing(load_generator(experiment, run)) as host:
        held_out = held_out_prompts(experiment, host.tokens)
        assert held_out is not None
        verdict = _verdict(host, held_out)
    return verdict if run is None else verdict._replace(model=str(run))


def _verdict(host: Session[Any] | Generator, held_out: PromptLoader) -> EvalResult:
    settings, rewards = host.experiment.evaluation, host.experiment.reward
    assert settings is not None
    samples = settings.samples_per_prompt
    held_out.loader.load_state_dict({"position": 0})
    rows = held_out.next_batch(min(settings.num_prompts, len(held_out.source)), samples)
    judged = generate_and_score(
        host, rows, step=0, seed=host.seed + 1, temperature=settings.temperature or None,
        greedy=settings.temperature == 0,
    )  # fmt: skip
    answers = judged.answers
    groups = [answers[start : start + samples] for start in range(0, len(answers), samples)]
    prompts = [tuple(row.prompt_ids) for row in rows[::samples]]

    def estimate(values: Sequence[float]) -> MeanCI:
        return MeanCI(sum(values) / len(values), *interval(values, prompts))

    judge = next(each for each in rewards if settings.reward in (None, each.label))
    scores = [[answer.rewards[judge.label] for answer in group] for group in groups]
    means_of_prompts = [sum(each) / samples for each in scores]
    found = {"score": estimate(means_of_prompts)}
    numbers = k_values(samples) if samples > 1 else []
    if all(score in (0.0, 1.0) for each in scores for score in each):
        for k in numbers:
            found[f"pass_at_{k}"] = estimate([pass_at_k(samples, int(sum(each)), k) for each in scores])
    if settings.best_of_reward is not None:
        values = [[answer.rewards[settings.best_of_reward] for answer in group] for group in groups]
        for k in numbers:
            chosen = [best_of_k(*each, k) for each in zip(values, scores, strict=True)]
            found[f"best_of_{k}"] = estimate(chosen)
    if numbers and hasattr(judge.component, "answer_of"):
        votes = [[judge.component.answer_of(answer.text) for answer in group] for group in groups]
        won = [maj_at_k(*each) for each in zip(votes, scores, strict=True)]
        found[f"maj_at_{samples}"] = estimate(won)
    for label in (each.label for each in rewards):
        means = [sum(answer.rewards[label] for answer in group) / samples for group in groups]
        found[f"reward_{label}_mean"] = estimate(means)
    tokens = [sum(answer.tokens for answer in group) / samples for group in groups]
    found["response_tokens_mean"] = estimate(tokens)
    return EvalResult(
        host.experiment.model.path, len(groups), judged.failures, judged.reasons, found,
        means_of_prompts, prompts,
    )  # fmt: skip


def interval(values: Sequence[float], prompts: Sequence[Hashable] | None = None) -> tuple[float, float]:
    """Returns the 95% interval of the mean of ``values``, one of each prompt.

    Right-or-wrong values get Wilson's interval, which holds at 0 and 1 too; others the mean +- 1.96 standard
    errors. Prompts that a source repeats are no further evidence: c different ones among n, the i-th m_i
    times, count as ``n^2 / sum_i m_i^2`` in the one, and give cluster-robust errors in the other.

    Args:
        prompts: what prompts are equal by, n; None: all differ.

    Source: effective sample size, Kish 1965; clusters, arXiv 2411.00640.
    """
    n, mean = len(values), sum(values) / len(values)
    if set(values) <= {0.0, 1.0}:
        count = n * n / sum(m * m for m in Counter(range(n) if prompts is None else prompts).values())
        centre = (mean + Z95**2 / (2 * count)) / (1 + Z95**2 / count)
        spread = math.sqrt(mean * (1 - mean) / count + Z95**2 / (4 * count * count))
        half = Z95 / (1 + Z95**2 / count) * spread
        return max(centre - half, 0.0), min(centre + half, 1.0)
    return _clustered_interval(values, prompts)


def _clustered_interval(
    values: Sequence[float], prompts: Sequence[Hashable] | None = None
) -> tuple[float, float]:
    """Returns the mean of ``values`` +- 1.96 standard errors that are robust to equal prompts.

    Args:
        prompts: what prompts are equal by, n; None: all differ.

    Source: arXiv 2411.00640.
    """
    n, mean = len(values), sum(values) / len(values)
    clusters: dict[Hashable, list[float]] = {}
    for prompt, value in zip(range(n) if prompts is None else prompts, values, strict=True):
        clusters.setdefault(prompt, []).append(value)
    if len(clusters) == 1:
        return -math.inf, math.inf
    squares = sum(sum(value - mean for value in each) ** 2 for each in clusters.values())
    error = math.sqrt(squares * len(clusters) / (len(clusters) - 1)) / n
    return mean - Z95 * error, mean + Z95 * error
