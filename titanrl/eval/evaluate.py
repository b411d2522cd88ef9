"""Scores of a policy on held-out prompts with 95% intervals, during training or for any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.data.prompts import held_out_prompts
from titanrl.errors import ConfigError
from titanrl.eval.intervals import difference_interval, mean_interval
from titanrl.eval.pass_at_k import best_of_k, k_values, maj_at_k, pass_at_k
from titanrl.rollout.generator import generate_and_score, load_generator
from titanrl.runtime import status
from titanrl.runtime.stop import abandonable

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.config.tables import Evaluation
    from titanrl.data.prompts import PromptLoader
    from titanrl.rollout.context import RolloutContext
    from titanrl.rollout.generator import ScoredResponse

__all__ = ["EvalResult", "MeanCI", "evaluate", "evaluate_model"]


class MeanCI(NamedTuple):
    """A mean over prompts and its 95% interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """Returns plain values; an infinite bound, which a single prompt gives, becomes None."""
        return {key: value if math.isfinite(value) else None for key, value in self._asdict().items()}


class EvalResult(NamedTuple):
    """The scores of a model on held-out prompts."""

    model: str
    """Folder of the model or run; empty within a training run."""
    num_prompts: int
    failures: int
    """Number of responses on which a reward failed, summed over the rewards."""
    reasons: dict[str, str]
    """Label of each reward that failed -> its first error."""
    estimates: dict[str, MeanCI]
    """Metric name without ``eval/`` -> mean and interval; the score comes first."""
    scores: Sequence[float]
    """Score of each prompt, the mean over its scored responses; NaN where it has none."""
    prompts: Sequence[Hashable]
    """Identity of each prompt; equal prompts form one cluster."""
    unscored: int = 0
    """Number of responses without a score, because a reward with on_failure = "unscored" failed on them; they
    are part of no estimate."""

    def minus(self, other: EvalResult) -> MeanCI:
        """Returns the mean difference of the scores, paired by prompt; both have the same prompts.

        Prompts that are hard for both cancel, so the difference has a smaller error than either score.
        Prompts that one of them has no score of are left out.
        """
        differences = [score - baseline for score, baseline in zip(self.scores, other.scores, strict=True)]
        return _mean_ci(differences, self.prompts, difference_interval)

    def metrics(self) -> dict[str, float]:
        """Returns the numbers as a run logs them, ``eval/...``."""
        score = self.estimates["score"]
        metrics = {
            **{f"eval/{name}": estimate.mean for name, estimate in self.estimates.items()},
            "eval/score_low": score.low,
            "eval/score_high": score.high,
            "eval/num_prompts": float(self.num_prompts),
            "eval/reward_failures": float(self.failures),
        }
        if self.unscored:
            metrics["eval/unscored_responses"] = float(self.unscored)
        return {name: value for name, value in metrics.items() if not math.isnan(value)}

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        estimates = {name: estimate.to_json() for name, estimate in self.estimates.items()}
        counts = {"num_prompts": self.num_prompts, "reward_failures": self.failures}
        counts |= {"unscored_responses": self.unscored} if self.unscored else {}
        return {"model": self.model, **counts, "reward_failure_reasons": self.reasons, **estimates}


def evaluate_model(
    experiment: Experiment, run: Path | None = None, step: str | int | None = None
) -> EvalResult:
    """Returns the held-out scores of a model without training it, the same on every rank.

    Args:
        experiment: a checked experiment with [evaluation.prompts].
        run: folder of the run whose checkpoint is evaluated; None: the weights of [model] path.
        step: of the checkpoint, or "best"; None: the newest whole one.

    Raises:
        ConfigError: there are no held-out prompts, or no complete checkpoint.
    """
    from titanrl.engine import init_distributed

    if experiment.evaluation is None or experiment.evaluation.prompts is None:
        raise ConfigError(
            "[evaluation.prompts] is missing; evaluate a file with held-out prompts, [sampler] and "
            "[[reward]], and name the model or run to evaluate by --model."
        )
    init_distributed()
    with abandonable():
        generator = load_generator(experiment, run, step)
    status.update(stage="evaluation")
    with closing(generator):
        prompts = held_out_prompts(experiment, generator.tokenizer)
        assert prompts is not None
        result = evaluate(generator, experiment.evaluation, prompts)
    return result._replace(model=str(run or experiment.model.path))


def evaluate(context: RolloutContext, settings: Evaluation, prompts: PromptLoader) -> EvalResult:
    """Returns the scores on the first held-out prompts, the same ones at every call; a collective.

    The score is the raw value of one reward, never the weighted sum; the means of all rewards are reported
    beside it. Several responses to each prompt also give ``pass_at_<k>`` where the score is 0 or 1,
    ``best_of_<k>`` by the reward that [evaluation] selects, and ``maj_at_<n>`` where the reward can extract
    the answer of a response; k are the powers of two and the number of responses.

    Args:
        context: the policy and its rewards.
        settings: the [evaluation] table.
        prompts: loader of the held-out prompts.
    """
    num_samples = settings.samples_per_prompt
    prompts.loader.load_state_dict({"position": 0})
    requests = prompts.next_batch(min(settings.num_prompts, len(prompts.source)), num_samples)
    rollouts = generate_and_score(
        context,
        requests,
        step=0,
        seed=context.seed + 1,
        temperature=settings.temperature or None,
        greedy=settings.temperature == 0,
        unscored=True,
    )
    responses = rollouts.responses
    groups = [responses[start : start + num_samples] for start in range(0, len(responses), num_samples)]
    # The tasks of an environment may all begin with the same text.
    identities: list[Hashable] = [
        tuple(request.prompt_ids) if context.environment is None else request.prompt_id
        for request in requests[::num_samples]
    ]

    def mean_of(values: Sequence[float]) -> MeanCI:
        return _mean_ci(values, identities, mean_interval)

    scorer = next(each for each in context.rewards if settings.reward in (None, each.label))
    scored = [[each for each in group if not math.isnan(each.rewards[scorer.label])] for group in groups]
    scores = [[response.rewards[scorer.label] for response in group] for group in scored]
    prompt_scores = [_mean(each) for each in scores]
    estimates = {"score": mean_of(prompt_scores)}
    ks = k_values(num_samples) if num_samples > 1 else []
    if all(score in (0.0, 1.0) for each in scores for score in each):
        for k in ks:
            estimates[f"pass_at_{k}"] = mean_of(
                [pass_at_k(len(each), int(sum(each)), k) if len(each) >= k else math.nan for each in scores]
            )
    if settings.best_of_reward is not None:
        pairs = [_selected(group, scorer.label, settings.best_of_reward) for group in scored]
        for k in ks:
            estimates[f"best_of_{k}"] = mean_of(
                [best_of_k(*each, k) if len(each[0]) >= k else math.nan for each in pairs]
            )
    if ks and hasattr(scorer.component, "answer_of"):
        votes = [
            [scorer.component.answer_of(scorer.scored_text(response.text)) for response in group]
            for group in scored
        ]
        estimates[f"maj_at_{num_samples}"] = mean_of(
            [maj_at_k(*each) if each[1] else math.nan for each in zip(votes, scores, strict=True)]
        )
    for label in (each.label for each in context.rewards):
        values = [[response.rewards[label] for response in group] for group in groups]
        estimates[f"reward_{label}_mean"] = mean_of([_mean(each) for each in values])
    tokens = [sum(response.tokens for response in group) / num_samples for group in groups]
    estimates["response_tokens_mean"] = mean_of(tokens)
    return EvalResult(
        "",
        len(groups),
        rollouts.failures,
        rollouts.reasons,
        estimates,
        prompt_scores,
        identities,
        unscored=len(responses) - sum(map(len, scored)),
    )


def _selected(
    responses: Sequence[ScoredResponse], label: str, selector: str
) -> tuple[list[float], list[float]]:
    """Returns the values that select the best response, and the scores, of responses that have both."""
    both = [(each.rewards[selector], each.rewards[label]) for each in responses]
    both = [(value, score) for value, score in both if not math.isnan(value)]
    return [value for value, _ in both], [score for _, score in both]


def _mean(values: Sequence[float]) -> float:
    """Returns the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _mean_ci(
    values: Sequence[float],
    prompts: Sequence[Hashable],
    bounds: Callable[[Sequence[float], Sequence[Hashable]], tuple[float, float]],
) -> MeanCI:
    """Returns the mean of the values that are not NaN, with its interval; all NaN if there are none."""
    known = [(value, each) for value, each in zip(values, prompts, strict=True) if not math.isnan(value)]
    if not known:
        return MeanCI(math.nan, math.nan, math.nan)
    values, prompts = [value for value, _ in known], [each for _, each in known]
    return MeanCI(sum(values) / len(values), *bounds(values, prompts))
