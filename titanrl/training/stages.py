"""The stages of a step that need an engine, a sampler or rewards; the pure ones are in estimate.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import TensorDict

from titanrl.data.collate import collate_rollouts
from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import where0
from titanrl.protocols import FinishReason
from titanrl.rollout.rewards import Failures, score_on_leader
from titanrl.rollout.sampling import generate
from titanrl.training.critic import critic_values

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest
    from titanrl.training.session import Session

Scorer: TypeAlias = Callable[[TensorDict, tuple[str, ...]], dict[str, torch.Tensor]]
"""This rank's rows and names of outputs -> {name: [N, L(, K)] or [N], 0 where masked}; a collective."""

__all__ = ["batch_metrics", "sample", "score", "score_models", "sync"]


def sample(session: Session, rows: Sequence[RolloutRequest], step: int) -> tuple[TensorDict, Failures]:
    """Returns this rank's batch as stage `sample` promises it, one answer for each of its share of ``rows``,
    and the rewards' failures on greedy answers, where those are scored; a collective.

    Args:
        rows: those of all ranks.
    """
    batch = _answered(session, rows, step, greedy=False)
    failures = Failures({}, {})
    if session.scores_greedy:
        baselines, failed = _greedy_rewards(session, rows, step)
        batch["baseline_reward"] = torch.tensor([baselines[group] for group in batch["group_id"].tolist()])
        failures = Failures({"reward/greedy_failures": sum(failed.counts.values())}, failed.reasons)
    return batch, failures


def _answered(session: Session, rows: Sequence[RolloutRequest], step: int, *, greedy: bool) -> TensorDict:
    kept, answers = generate(session, rows, step=step, seed=session.seed, greedy=greedy)
    mine = [rows[number] for number in kept]
    return collate_rollouts(mine, answers, decode=session.tokens.decode, version=session.sampler.version)


def _greedy_rewards(
    session: Session, rows: Sequence[RolloutRequest], step: int
) -> tuple[dict[int, float], Failures]:
    """Returns the reward of the greedy answer to the prompt of each of this rank's groups, and the rewards'
    failures."""
    first_of = {row.prompt_index: row for row in reversed(rows)}
    batch = _answered(session, [*reversed(first_of.values())], step, greedy=True)
    scored = score_on_leader(session.engine, batch, session.experiment.reward)
    found = dict(zip(batch["group_id"].tolist(), scored.scores["reward"].tolist(), strict=True))
    return found, scored.failures


def score(session: Session, batch: TensorDict) -> tuple[TensorDict, Failures]:
    """Returns the batch with its rewards and what models say of it, and the rewards' failures."""
    batch = batch.copy()
    failures = Failures({}, {})
    if session.experiment.reward:
        scored = score_on_leader(session.engine, batch, session.experiment.reward)
        failures = scored.failures
        batch.update(scored.scores)
    if session.experiment.algorithm.old_logprob == "sampler":
        batch["old_logprob"] = where0(batch["loss_mask"], batch["sampler_logprob"])
    return score_models(session, batch), failures


def score_models(session: Session[Any], batch: TensorDict) -> TensorDict:
    """Returns the batch with what policy, critic and frozen roles say of it.

    Only what is read is computed.
    """
    batch = batch.copy()
    found: dict[str, torch.Tensor] = {}
    for role, recorded in _roles(session).items():
        wanted = {key: output for key, output in recorded.items() if key in session.scored_keys}
        if wanted:
            # The policy's outputs, of the turn before, are the reference's too until it has moved.
            if not (_is_policy(session, role) and found.keys() >= set(wanted.values())):
                found = _scorer(session, role)(batch, tuple(wanted.values()))
            batch.update({key: found[output] for key, output in wanted.items()})
    return batch


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
"""Role -> batch key -> which of its outputs stands there, as it was before the update."""


def _roles(session: Session[Any]) -> dict[str, dict[str, str]]:
    """Returns ROLES; a critic on the policy's body answers in the policy's pass."""
    if not _shares_critic(session):
        return ROLES
    return ROLES | {"policy": ROLES["policy"] | ROLES["critic"], "critic": {}}


def _shares_critic(session: Session[Any]) -> bool:
    critic = session.experiment.critic
    return critic is not None and critic.shared


def _is_policy(session: Session[Any], role: str) -> bool:
    return role == "reference" and session.reference_cache is None and session.engine.is_policy(role)


def _scorer(session: Session[Any], role: str) -> Scorer:
    """Returns who gives a role's outputs: its model, or what stands in the model's place."""
    if role == "policy":
        engine = session.engine
        return partial(critic_values, engine.policy) if _shares_critic(session) else engine.score
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


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Returns what the global batch says of sampling and rewards, before any filter."""
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
        worse = groups.comparable & (groups.score < groups.mean())
        if bool(worse.any()):
            metrics["sample/incorrect_response_tokens_mean"] = float(lengths[worse].mean())
        for name in sorted(batch["rewards"].keys()):
            values = batch["rewards", name]
            metrics[f"reward/{name}"] = float(values[~values.isnan()].mean())
    if "baseline_reward" in batch:
        metrics["reward/greedy_mean"] = float(batch["baseline_reward"].mean())
    return metrics
