"""The stages of a step that need an engine, a sampler or rewards; the pure ones are in estimate.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from titanrl.loop.buffer import assemble
from titanrl.loop.critic import critic_values
from titanrl.loop.scoring import score_rewards
from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import where0

if TYPE_CHECKING:
    from titanrl.loop.session import Session
    from titanrl.protocols import PromptRow, Sample

__all__ = ["batch_metrics", "local_rows", "sample", "score", "score_models", "sync"]


def local_rows(session: Session, first_group: int) -> list[PromptRow]:
    """Returns this rank's share of the next prompts; every rank's feed moves on alike."""
    loop = session.experiment.loop
    rows = session.feed.take(loop.prompts_per_step, loop.samples_per_prompt, first_group)
    mine = session.share_of(loop.prompts_per_step)
    return rows[mine.start * loop.samples_per_prompt : mine.stop * loop.samples_per_prompt]


def sample(session: Session, rows: Sequence[PromptRow], step: int) -> tuple[TensorDict, dict[str, float]]:
    """Returns this rank's batch as stage `sample` promises it, one answer for each of ``rows``, and how often
    rewards failed on greedy answers, where those are scored."""
    batch = _answered(session, rows, step, greedy=False)
    failures: dict[str, float] = {}
    if session.scores_greedy:
        batch["baseline_reward"], failed = _greedy_reward(session, rows, step)
        failures["reward/greedy_failures"] = failed
    return batch, failures


def _answered(session: Session, rows: Sequence[PromptRow], step: int, *, greedy: bool) -> TensorDict:
    answers: list[Sample] = session.sampler.sample(rows, step=step, seed=session.seed, greedy=greedy)
    return assemble(rows, answers, decode=session.tokens.decode, version=session.sampler.version)


def _greedy_reward(session: Session, rows: Sequence[PromptRow], step: int) -> tuple[torch.Tensor, float]:
    """Returns [N] float32, the reward of the greedy answer to each row's prompt, and how often a reward
    failed on one; there is one a group."""
    first_of = {row.group: row for row in reversed(rows)}
    batch = _answered(session, list(first_of.values()), step, greedy=True)
    rewards, failures = score_rewards(batch, session.experiment.reward)
    place = {group: index for index, group in enumerate(first_of)}
    return rewards["reward"][[place[row.group] for row in rows]], sum(failures.values())


def score(session: Session, batch: TensorDict) -> tuple[TensorDict, dict[str, float]]:
    """Returns the batch with its rewards and what models say of it, and the rewards' failure counts."""
    batch = batch.copy()
    failures: dict[str, float] = {}
    if session.experiment.reward:
        rewards, failures = score_rewards(batch, session.experiment.reward)
        batch.update(rewards)
    if session.experiment.algorithm.old_logprob == "sampler":
        batch["old_logprob"] = where0(batch["loss_mask"], batch["sampler_logprob"])
    return score_models(session, batch), failures


def score_models(session: Session[Any], batch: TensorDict) -> TensorDict:
    """Returns the batch with what policy, critic and frozen roles say of it.

    Only what is read is computed.
    """
    batch = batch.copy()
    reads = session.scored_keys
    policy = tuple(key for key in ("old_logprob", "old_entropy", "sum_pi_squared") if key in reads)
    if policy:
        outputs = session.engine.score(batch, keys=tuple(SCORED[key] for key in policy))
        batch.update({key: outputs[SCORED[key]] for key in policy})
    if "ref_logprob" in reads:
        if (cache := session.reference_cache) is not None:
            batch["ref_logprob"] = cache.logprob(batch)
        else:
            batch["ref_logprob"] = session.engine.frozen["reference"].score(batch)["logprob"]
    if teacher := tuple(key for key in TAUGHT if key in reads):
        outputs = session.engine.frozen["teacher"].score(batch, keys=tuple(TAUGHT[key] for key in teacher))
        batch.update({key: outputs[TAUGHT[key]] for key in teacher})
    if "value" in reads:
        assert session.engine.critic is not None
        batch.update(critic_values(session.engine.critic, batch, final="final_value" in reads))
    return batch


SCORED = {"old_logprob": "logprob", "old_entropy": "entropy", "sum_pi_squared": "sum_pi_squared"}
"""Batch key -> field of PolicyOutputs that it records before the update."""

TAUGHT = {
    "teacher_logprob": "logprob",
    "candidate_ids": "likeliest_ids",
    "candidate_logprob": "likeliest_logprob",
}
"""Batch key -> what of the teacher's scores it records."""


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
        "sample/truncated_fraction": float((batch["finish_reason"] == 1).float().mean()),
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
            metrics["sample/worse_response_tokens_mean"] = float(lengths[worse].mean())
        for name in sorted(batch["rewards"].keys()):
            values = batch["rewards", name]
            metrics[f"reward/{name}"] = float(values[~values.isnan()].mean())
    if "baseline_reward" in batch:
        metrics["reward/greedy_mean"] = float(batch["baseline_reward"].mean())
    return metrics
