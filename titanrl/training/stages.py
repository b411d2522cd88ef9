"""The stages of a step that need an engine, a sampler or rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDict

from titanrl.algorithm.combine_rewards import combine_rewards, normalized
from titanrl.algorithm.compute_advantages import unscored_rows
from titanrl.algorithm.rollouts import rollouts_of
from titanrl.engine import collectives
from titanrl.errors import TrainingError
from titanrl.eval.evaluate import evaluate
from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import where0
from titanrl.protocols import FinishReason, temperature_at
from titanrl.rollout.batches import sample_batch, score_batch
from titanrl.rollout.rewards import Failures, Scored
from titanrl.training.critic import critic_values
from titanrl.training.kto_reference_point import reference_point

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest
    from titanrl.training.session import Session

Scorer: TypeAlias = Callable[[TensorDict, tuple[str, ...]], dict[str, torch.Tensor]]
"""This rank's rows and names of outputs -> {name: [N, L(, K)] or [N], 0 where masked}; a collective."""

__all__ = [
    "batch_metrics",
    "evaluate_prompts",
    "is_on_policy",
    "refuse_mismatch",
    "sample",
    "score",
    "score_models",
    "sync",
]


class Sampled(NamedTuple):
    """This rank's rollouts."""

    batch: TensorDict
    greedy_failures: Failures
    """The rewards' failures on greedy responses."""
    metrics: list[dict[str, float]]
    """Numbers of each rollout in an environment; empty without an environment."""


def sample(session: Session, requests: Sequence[RolloutRequest], step: int) -> Sampled:
    """Returns this rank's rollouts; a collective.

    Args:
        session: the run.
        requests: the requests of all ranks; each rank gets a share.
        step: number of the training step, from 0.
    """
    session.engine.temperature = temperature_at(session.sampler_settings, step)
    batch, metrics = _rollouts(session, requests, step, greedy=False)
    failures = Failures({}, {})
    if session.scores_greedy:
        baselines, failed = _greedy_rewards(session, requests, step)
        batch["baseline_reward"] = torch.tensor([baselines[group] for group in batch["group_id"].tolist()])
        failures = Failures({"reward/greedy_failures": sum(failed.counts.values())}, failed.reasons)
    return Sampled(batch, failures, metrics)


def _rollouts(
    session: Session, requests: Sequence[RolloutRequest], step: int, *, greedy: bool
) -> tuple[TensorDict, list[dict[str, float]]]:
    _, batch, metrics = sample_batch(session, requests, step=step, seed=session.seed, greedy=greedy)
    assert batch is not None, "each rank has at least one prompt"
    current = torch.full((len(batch),), session.state.step, dtype=torch.int32)
    return batch.set("current_version", current), metrics


def _greedy_rewards(
    session: Session, requests: Sequence[RolloutRequest], step: int
) -> tuple[dict[int, float], Failures]:
    """Returns the reward of the greedy response per group of this rank, and the rewards' failures."""
    first_of_group = {request.prompt_index: request for request in reversed(requests)}
    batch, _ = _rollouts(session, [*reversed(first_of_group.values())], step, greedy=True)
    scored = _score_rewards(session, batch)
    baselines = dict(zip(batch["group_id"].tolist(), scored.scores["reward"].tolist(), strict=True))
    return baselines, scored.failures


def _score_rewards(session: Session, batch: TensorDict) -> Scored:
    return collectives.abandon_together(lambda: score_batch(session, batch, unscored=True))


def score(session: Session, batch: TensorDict, *, on_policy: bool) -> tuple[TensorDict, Failures]:
    """Returns the batch with its rewards and the outputs of the models, and the rewards' failures.

    Args:
        session: the run.
        batch: this rank's rows as stage `sample` leaves them.
        on_policy: see ``is_on_policy``.
    """
    batch = batch.copy()
    failures = Failures({}, {})
    if session.rewards:
        scored = _score_rewards(session, batch)
        failures = scored.failures
        batch.update(scored.scores)
        if any(reward.normalize != "none" for reward in session.rewards):
            batch["reward"] = _normalized_reward(session, batch)
    if session.algorithm.old_logprob == "sampler":
        batch["old_logprob"] = where0(batch["loss_mask"], batch["sampler_logprob"])
    return score_models(session, batch, on_policy=on_policy), failures


def _normalized_reward(session: Session, batch: TensorDict) -> torch.Tensor:
    """Returns the reward of this rank's rows, from values normalized over the rows of all ranks."""
    engine, labels = session.engine, [reward.label for reward in session.rewards]
    own = torch.stack([batch["rewards", label] for label in labels]), batch["group_id"]
    parts = collectives.gather_objects([own], engine.dp_group, engine.dp_degree)
    values = dict(zip(labels, torch.cat([each for each, _ in parts], 1), strict=True))
    values = normalized(values, torch.cat([group_id for _, group_id in parts]), session.rewards)
    start = sum(len(group_id) for _, group_id in parts[: engine.dp_rank])
    return combine_rewards(values, session.rewards)[start : start + len(batch)]


def is_on_policy(session: Session[Any], batch: TensorDict) -> bool:
    """Returns whether every response token was sampled by the weights that are trained now; a collective.

    Offline data has no versions: there, the old policy is the policy before the update by definition.
    """
    versions, mask = batch.get("policy_version_token", None), batch["loss_mask"]
    is_fresh = versions is None or bool((versions == session.state.step)[mask].all())
    engine = session.engine
    return all(collectives.gather_objects([is_fresh], engine.dp_group, engine.dp_degree))


def score_models(session: Session[Any], batch: TensorDict, *, on_policy: bool) -> TensorDict:
    """Returns the batch with the outputs of the policy, the critic and the frozen models.

    Only keys that some component reads are computed. In on-policy steps the update computes ``old_logprob``
    itself where the dataflow allows it.
    """
    batch = batch.copy()
    keys = session.keys_to_score(on_policy=on_policy)
    outputs: dict[str, torch.Tensor] = {}
    for role, all_outputs in _roles(session).items():
        needed = {key: output for key, output in all_outputs.items() if key in keys}
        if needed:
            # Until the first update, the policy's outputs (just computed) are also the reference's.
            if not (_is_policy(session, role) and outputs.keys() >= set(needed.values())):
                outputs = _scorer(session, role)(batch, tuple(needed.values()))
            batch.update({key: outputs[output] for key, output in needed.items()})
    if "reference_point" in keys:
        point = reference_point(session.engine, batch, session.max_length)
        batch["reference_point"] = torch.full((len(batch),), point)
    return batch


def refuse_mismatch(session: Session[Any], batch: TensorDict, limit: float) -> None:
    """Ends a run whose trainer and sampler disagree on a token of the present weights; a collective.

    Args:
        session: the run.
        batch: this rank's rows as stage `score` leaves them.
        limit: largest accepted |trainer - sampler log-prob|, nats.

    Raises:
        TrainingError: names the row, the position and both log-probs.
    """
    engine = session.engine
    own = engine.score(batch, ("logprob",))["logprob"]
    fresh = batch["loss_mask"] & (batch["policy_version_token"] == session.state.step)
    difference = where0(fresh, (own - batch["sampler_logprob"]).abs()).nan_to_num(torch.inf)
    worst: list[tuple[float, str]] = []
    if difference.numel() and float(difference.max()) > limit:
        row, position = divmod(int(difference.argmax()), difference.shape[1])
        numbers = [float(each[row, position]) for each in (difference, own, batch["sampler_logprob"])]
        text = (
            f"log-prob {numbers[1]:.6g} by the trainer, {numbers[2]:.6g} by the sampler, of token "
            f"{int(batch['labels'][row, position])} at label position {position} of row "
            f"{int(batch['row_id'][row])}"
        )
        worst = [(numbers[0], text)]
    worst = collectives.gather_objects(worst, engine.dp_group, engine.dp_degree)
    if worst:
        value, text = max(worst)
        raise TrainingError(
            f"trainer and sampler disagree by {value:.3g} nats in step {session.state.step + 1}, more than "
            f"[loop] max_logprob_diff = {limit:g}: {text}. Compare their precision, and the weights that "
            "were sent."
        )


ROLES = {
    "policy": {"old_logprob": "logprob", "old_entropy": "entropy", "sum_pi_squared": "sum_pi_squared"},
    "reference": {"ref_logprob": "logprob"},
    "teacher": {
        "teacher_logprob": "logprob",
        "candidate_ids": "topk_ids",
        "candidate_logprob": "topk_logprob",
    },
    "critic": {"value": "value", "final_value": "final_value"},
}
"""Role -> batch key -> the output of the role's model that the key holds, before the update."""


def _roles(session: Session[Any]) -> dict[str, dict[str, str]]:
    """Returns ROLES; a critic that shares the policy's backbone is computed in the policy's pass."""
    if not session.shares_critic:
        return ROLES
    return ROLES | {"policy": ROLES["policy"] | ROLES["critic"], "critic": {}}


def _is_policy(session: Session[Any], role: str) -> bool:
    return role == "reference" and session.reference_cache is None and session.engine.is_policy(role)


def _scorer(session: Session[Any], role: str) -> Scorer:
    """Returns the function that computes a role's outputs: its model's, or that of the reference cache."""
    if role == "policy":
        engine = session.engine
        return partial(critic_values, engine.policy) if session.shares_critic else engine.score
    if role == "reference" and session.reference_cache is not None:
        return session.reference_cache.score
    if role != "critic":
        return session.engine.frozen[role].score
    assert session.engine.critic is not None
    return partial(critic_values, session.engine.critic)


def sync(session: Session[Any], version: int) -> None:
    """Sends the policy's weights to the sampler, which then samples as ``version``."""
    session.sampler.wake()
    session.sampler.load(session.engine.weights(session.sampler.weight_dtype), version=version)


def evaluate_prompts(session: Session[Any]) -> dict[str, float]:
    """Returns the ``eval/...`` metrics on the held-out prompts; a collective.

    Raises:
        AssertionError: the session has no held-out prompts.
    """
    assert session.evaluation is not None
    assert session.eval_prompts is not None
    result = evaluate(session, session.evaluation, session.eval_prompts)
    session.reasons = result.reasons | session.reasons
    return result.metrics()


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Returns the sampling and reward metrics of the global batch, before any filter.

    A rollout with several rows counts once.
    """
    batch = rollouts_of(batch)
    lengths = batch["loss_mask"].sum(1).float()
    metrics = {
        "sample/response_tokens_mean": float(lengths.mean()),
        "sample/response_tokens_max": float(lengths.max()),
        "sample/response_tokens_p50": float(lengths.quantile(0.5)),
        "sample/response_tokens_p95": float(lengths.quantile(0.95)),
        "sample/truncated_fraction": float((batch["finish_reason"] == FinishReason.LENGTH).float().mean()),
        "sample/tokens": float(lengths.sum()),
    }
    if "reward" in batch:
        scored = batch["reward"][~batch["reward"].isnan()]
        if len(scored):
            metrics["reward/mean"] = float(scored.mean())
            metrics["reward/std"] = float(scored.std()) if len(scored) > 1 else 0.0
        groups = GroupScores.of(batch["reward"], batch["group_id"])
        below_mean = groups.comparable & (groups.score < groups.mean())
        if bool(below_mean.any()):
            metrics["sample/incorrect_response_tokens_mean"] = float(lengths[below_mean].mean())
        for name in sorted(batch["rewards"].keys()):
            values = batch["rewards", name]
            if not bool(values.isnan().all()):
                metrics[f"reward/{name}"] = float(values[~values.isnan()].mean())
        if bool((unscored := unscored_rows(batch)).any()):
            metrics["reward/unscored_rows"] = float(unscored.sum())
    if "baseline_reward" in batch:
        metrics["reward/greedy_mean"] = float(batch["baseline_reward"].nanmean())
    return metrics
