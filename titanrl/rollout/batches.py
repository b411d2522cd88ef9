"""Sampled responses, or rollouts in an environment, as rows of a batch, and their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from titanrl.algorithm.rollouts import join_rollouts
from titanrl.config.environment import reads_outcome
from titanrl.data.collate import collate_rollouts
from titanrl.errors import TrainingError
from titanrl.rollout.environments.rows import environment_metrics, rows_of_rollouts
from titanrl.rollout.rewards import Scored, score_on_leader
from titanrl.rollout.sampling import generate, generate_rollouts

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import RolloutRequest
    from titanrl.rollout.context import RolloutContext

__all__ = ["SampledBatch", "sample_batch", "score_batch"]


class SampledBatch(NamedTuple):
    """This rank's share of the requests, sampled."""

    indices: list[int]
    """Indices of its requests."""
    batch: TensorDict | None
    """Rows as stage `sample` leaves them, without ``current_version``; None without requests."""
    metrics: list[dict[str, float]]
    """Numbers of each rollout in an environment; empty without an environment."""


def sample_batch(
    context: RolloutContext,
    requests: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
) -> SampledBatch:
    """Return this rank's responses to the requests as rows; a collective.

    Args:
        context: the policy, its sampler and its environment.
        requests: all requests, the same on every rank.
        step: the training step, part of the random seed.
        seed: the run's seed.
        temperature: divides the logits; None: the sampler's.
        greedy: take the most probable token.

    Raises:
        TrainingError: the environment gives a reward that no [[reward]] reads.
    """
    decode, version = context.tokenizer.decode_response, context.sampler.version
    if context.environment is None:
        indices, completions = generate(
            context, requests, step=step, seed=seed, temperature=temperature, greedy=greedy
        )
        own = [requests[index] for index in indices]
        batch = collate_rollouts(own, completions, decode=decode, version=version) if own else None
        return SampledBatch(indices, batch, [])
    indices, rollouts = generate_rollouts(
        context, requests, step=step, seed=seed, temperature=temperature, greedy=greedy
    )
    own = [requests[index] for index in indices]
    gives_reward = any(each.trajectory.reward is not None for each in rollouts)
    if gives_reward and not any(reads_outcome(reward.component) for reward in context.rewards):
        raise TrainingError(
            "[environment] gives a reward that no [[reward]] reads, so it would be ignored; add [[reward]] "
            "name = 'environment', with weight = 0 to report it only."
        )
    batch = rows_of_rollouts(own, rollouts, decode=decode, version=version) if own else None
    return SampledBatch(indices, batch, environment_metrics(rollouts))


def score_batch(context: RolloutContext, batch: TensorDict, *, unscored: bool = False) -> Scored:
    """Return the rewards of this rank's rows; a rollout with several rows is scored once.

    It may be abandoned, so call it by ``collectives.abandon_together``.

    Args:
        context: the policy and its rewards.
        batch: rows as stage `sample` leaves them.
        unscored: whether rows on which a reward with on_failure = "unscored" fails get NaN.
    """
    rollouts = join_rollouts(batch)
    if rollouts is None:
        return score_on_leader(context.engine, batch, context.rewards, unscored=unscored)
    scored = score_on_leader(context.engine, rollouts.batch, context.rewards, unscored=unscored)
    scores = {key: rollouts.spread(value) for key, value in scored.scores.items()}
    return Scored(scores, scored.reasons)
