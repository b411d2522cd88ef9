"""Requests from outside and their responses, ranked by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from titanrl.data.collate import collate_rollouts
from titanrl.errors import ConfigError, TrainingError, did_you_mean
from titanrl.protocols import Completion, RolloutRequest
from titanrl.registry import declared
from titanrl.rollout.rewards import read_by, score_rewards
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from titanrl.config.tables import Reward
    from titanrl.protocols import Messages

__all__ = [
    "GenerationRequest",
    "GenerationResult",
    "RankedResponse",
    "Ranker",
    "ScoringJob",
    "TokenLogprob",
    "ranking_rewards",
    "reads_reference",
    "without_reference",
]


class GenerationRequest(NamedTuple):
    """One prompt and its sampling parameters."""

    prompt: Messages | str | tuple[int, ...]
    """A chat, text, or token ids."""
    reference: str | None = None
    """Reference answer, for rewards that read it."""
    num_responses: int = 1
    """Number of sampled responses (N)."""
    is_ranked: bool = False
    """Whether rewards score and rank the responses: all of them if there is a reference answer, otherwise
    those that need none."""
    seed: int = 0
    """In [0, 2^42); together with the run's seed it determines the samples."""
    temperature: float | None = None
    """0: greedy; None: the sampler's."""
    max_tokens: int | None = None
    """Token limit of a response; None: the sampler's."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; it does not include them."""
    num_top: int | None = None
    """Most probable tokens to report beside each token's log-prob; None: no log-probs."""


class TokenLogprob(NamedTuple):
    """One token of a response."""

    text: str
    logprob: float
    """Under the distribution that was sampled from, nats."""
    top: tuple[tuple[str, float], ...] = ()
    """The most probable tokens with their log-probs."""


class RankedResponse(NamedTuple):
    """One response and its score."""

    text: str
    num_tokens: int
    finish_reason: int
    """A ``FinishReason``."""
    score: float | None = None
    """Score for the ranking; None: not scored, or a reward failed."""
    rewards: Mapping[str, float] = MappingProxyType({})
    """Label -> raw value, of each reward that did not fail."""
    failures: Mapping[str, str] = MappingProxyType({})
    """Label -> reason, of each reward that failed."""
    tokens: tuple[TokenLogprob, ...] = ()
    """The tokens of the text, if the request asks for log-probs."""


class GenerationResult(NamedTuple):
    """The responses to one request."""

    num_prompt_tokens: int
    ranked: list[RankedResponse]
    """Highest score first, responses without a score last; ties in the order of sampling."""


def ranking_rewards(rewards: Sequence[Reward], label: str | None) -> list[Reward]:
    """Return the rewards that a ranking needs, including those that other rewards read.

    Args:
        rewards: all rewards of the experiment.
        label: the reward whose raw value ranks; None: the weighted sum, which ignores rewards of weight 0.

    Raises:
        ConfigError: no reward has the label.
    """
    by_label = {each.label: each for each in rewards}
    if label is not None and label not in by_label:
        text = f"must be the label of a [[reward]], got {label!r}{did_you_mean(label, by_label) or ';'}"
        raise ConfigError(f"--reward {text} labels: {', '.join(by_label) or 'none'}.")
    needed = [each.label for each in rewards if each.weight != 0] if label is None else [label]
    for name in needed:
        needed += sorted(read_by(by_label[name], rewards) - set(needed))
    return [each for each in rewards if each.label in needed]


def reads_reference(reward: Reward, rewards: Sequence[Reward]) -> bool:
    """Return whether a reward reads the reference answer, itself or through a reward that it reads."""
    if ("text", "answer") in declared(reward.component, "in_keys"):
        return True
    by_label = {each.label: each for each in rewards}
    return any(reads_reference(by_label[name], rewards) for name in read_by(reward, rewards))


def without_reference(rewards: Sequence[Reward], label: str | None) -> list[Reward]:
    """Return the rewards that rank responses to a request without a reference answer; [] if none can.

    Args:
        rewards: all rewards of the experiment.
        label: as for ``ranking_rewards``.
    """
    needed = ranking_rewards(rewards, label)
    free = [each for each in needed if not reads_reference(each, rewards)]
    ranks = [each for each in free if each.weight != 0] if label is None else free
    return free if ranks and (label is None or len(free) == len(needed)) else []


class ScoringJob(NamedTuple):
    """The responses to one prompt that are to be ranked."""

    rollouts: Sequence[RolloutRequest]
    completions: Sequence[Completion]
    responses: Sequence[RankedResponse]
    """Without scores."""
    texts: Sequence[str]
    """The responses as rewards read them: with special tokens, see ``ChatTokenizer.decode_response``."""
    has_reference: bool


class Ranker:
    """Scores responses by rewards and sorts them.

    Args:
        rewards: all rewards of the experiment.
        label: the reward whose raw value ranks; None: the weighted sum.
        version: policy version of the responses.
    """

    def __init__(self, rewards: Sequence[Reward], label: str | None, version: int = 0) -> None:
        self._label, self._version = label, version
        self._rewards = {True: ranking_rewards(rewards, label), False: without_reference(rewards, label)}

    def __call__(self, jobs: Sequence[ScoringJob]) -> list[list[RankedResponse] | Exception]:
        """Return the responses of each job, the highest score first, those without a score last.

        Each reward scores all of them at once. If that fails, each job is scored alone, and a job that fails
        alone gets a TrainingError.
        """
        results: dict[int, list[RankedResponse] | Exception] = {}
        for has_reference in (True, False):
            chosen = [index for index, job in enumerate(jobs) if job.has_reference == has_reference]
            try:
                scored = self._score([jobs[index] for index in chosen], self._rewards[has_reference])
                results |= dict(zip(chosen, scored, strict=True))
            # For example, a reward server that is down. The model server continues.
            except Exception as error:
                if len(chosen) == 1:
                    results[chosen[0]] = TrainingError(f"the rewards failed: {error_text(error)}")
                else:
                    for index in chosen:
                        results |= {index: self([jobs[index]])[0]}
        return [results[index] for index in range(len(jobs))]

    def _score(self, jobs: Sequence[ScoringJob], rewards: Sequence[Reward]) -> list[list[RankedResponse]]:
        flat = [response for job in jobs for response in job.responses]
        if not flat:
            return [[] for _ in jobs]
        texts = iter([text for job in jobs for text in job.texts])
        batch = collate_rollouts(
            [rollout for job in jobs for rollout in job.rollouts],
            [completion for job in jobs for completion in job.completions],
            decode=lambda _: next(texts),
            version=self._version,
        )
        scores, reasons = score_rewards(batch, rewards)
        key = "reward" if self._label is None else ("rewards", self._label)
        scored = []
        for row, response in enumerate(flat):
            failures = {label: failed[row] for label, failed in reasons.items() if row in failed}
            raw = {label: float(scores["rewards", label][row]) for label in reasons if label not in failures}
            score = None if failures else float(scores[key][row])
            scored.append(response._replace(score=score, rewards=raw, failures=failures))
        remaining = iter(scored)
        ranked = []
        for job in jobs:
            own = [next(remaining) for _ in job.responses]
            ranked.append(sorted(own, key=lambda each: (each.score is None, -(each.score or 0.0))))
        return ranked
