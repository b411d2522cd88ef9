"""The online loop: sample, score, compute advantages, compute loss weights, update, sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from titanrl.algorithm.compute_advantages import SelectedRows, compute_advantages, select_rows, unscored_rows
from titanrl.algorithm.metrics import means
from titanrl.algorithm.rollouts import rollouts_of
from titanrl.data.prompts import PromptLoader, training_prompts
from titanrl.engine import collectives
from titanrl.errors import TrainingError
from titanrl.ops.padding import concatenate
from titanrl.protocols.batch import check
from titanrl.registry.loops import register_loop
from titanrl.rollout.sample_rows import sample_rows
from titanrl.training.run import StageTimer, TrainLoop
from titanrl.training.stages import (
    batch_metrics,
    evaluate_prompts,
    is_on_policy,
    refuse_mismatch,
    sample,
    score,
    sync,
)
from titanrl.training.step import gather_scored, optimize

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.training.session import Session

__all__ = ["online", "train_step"]


@register_loop("online")
def online() -> TrainLoop[PromptLoader]:
    """Returns the loop that samples responses to prompts and trains on them."""
    return TrainLoop(open_loader=training_prompts, step=train_step, validate=evaluate_prompts, sync=sync)


def train_step(
    session: Session, step: int, timer: StageTimer
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Makes one training step; returns its metrics and some of this rank's rows.

    Args:
        session: the run.
        step: number of the training step, from 0.
        timer: measures the stages.

    Raises:
        TrainingError: the filters dropped every group of every attempt.
    """
    rollouts = _collect(session, step, timer)
    with timer("estimate"):
        batch, metrics = compute_advantages(rollouts.scored, session.algorithm, rollouts.selected)
        check(batch, "estimate")
    with timer("update"):
        session.sampler.sleep()
        sums = optimize(session, batch, step, on_policy=rollouts.on_policy)
    metrics = batch_metrics(rollouts.scored) | rollouts.metrics | metrics | means(sums)
    session.control(metrics, num_sequences=len(rollouts_of(rollouts.scored)), step=step)
    rows = _with_advantage(rollouts.local, batch)
    return metrics, sample_rows(rows, session.logged_samples, session.tokenizer.token_strings)


class _Rollouts(NamedTuple):
    """The rollouts of a step, of all its sampling attempts."""

    local: TensorDict
    """This rank's scored rows, with texts."""
    scored: TensorDict
    """The scored rows of all ranks."""
    selected: SelectedRows
    """The rows to train on."""
    on_policy: bool
    """Whether the weights being trained sampled every response token."""
    metrics: dict[str, float]
    """Failures of rewards, and counts of attempts and groups."""


def _collect(session: Session, step: int, timer: StageTimer) -> _Rollouts:
    """Samples and scores until enough groups pass the filters: one, or all with dynamic sampling.

    Raises:
        TrainingError: the filters dropped every group of every attempt, or the sampler's version decreased.
    """
    loop = session.loop
    wanted = loop.prompts_per_step if loop.dynamic_sampling else 1
    parts: list[tuple[TensorDict, TensorDict, SelectedRows]] = []
    rollout_numbers: list[dict[str, float]] = []
    failed, num_groups, on_policy = Counter[str](), 0, True
    for attempt in range(loop.max_resample_attempts + 1):
        with timer("sample"):
            requests = session.loader.next_batch(
                loop.prompts_per_step, loop.samples_per_prompt, first_group=attempt * loop.prompts_per_step
            )
            local, greedy_failures, numbers = sample(session, requests, step)
            check(local, "sample", session.out_keys)
            rollout_numbers += numbers
        with timer("score"):
            was_on_policy, on_policy = on_policy, on_policy and is_on_policy(session, local)
            if parts and was_on_policy and not on_policy:
                raise TrainingError(
                    f"the sampler used older weights in attempt {attempt + 1} of step {step} than in the "
                    "attempts before; a sampler's version must not decrease."
                )
            local, failures = score(session, local, on_policy=on_policy)
            if loop.max_logprob_diff is not None:
                refuse_mismatch(session, local, loop.max_logprob_diff)
            failed.update(session.failed(failures, greedy_failures))
            session.refuse_broken_rewards(failures, len(rollouts_of(local)))
        with timer("estimate"):
            scored = gather_scored(session, local, on_policy=on_policy)
            selected = select_rows(scored, session.algorithm)
            parts.append((local, scored, selected))
            num_groups += len(selected.rows["group_id"].unique())
        if num_groups >= wanted:
            break
    if not num_groups and all(bool(unscored_rows(scored).all()) for _, scored, _ in parts):
        reasons = "; ".join(f"{label}: {reason}" for label, reason in session.reasons.items())
        raise TrainingError(
            f"no response of step {step} has a score: the rewards failed on all of them, and [[reward]] "
            f"on_failure is 'unscored'. First errors: {reasons or 'none'}. Correct the reward or the service "
            "that it calls, and resume."
        )
    if not num_groups:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every group in {loop.max_resample_attempts + 1} attempts of step "
            f"{step}; loosen the filter, raise [loop] max_resample_attempts, or choose prompts of another "
            "difficulty."
        )
    metrics = {**failed, "sample/resample_attempts": float(attempt)}
    if session.rewards:
        most = max(failed[f"reward/{reward.label}_failures"] for reward in session.rewards)
        metrics["reward/failed_fraction"] = most / sum(len(rollouts_of(scored)) for _, scored, _ in parts)
    metrics |= _environment_metrics(session, rollout_numbers)
    rows = concatenate([selected.rows for _, _, selected in parts])
    if loop.dynamic_sampling:
        groups = rows["group_id"].unique()[:wanted]
        rows = rows[torch.isin(rows["group_id"], groups)]
        metrics["filter/surplus_groups"] = float(num_groups - len(groups))
        metrics["filter/missing_groups"] = float(wanted - len(groups))
    return _Rollouts(
        concatenate([local for local, _, _ in parts]),
        concatenate([scored for _, scored, _ in parts]),
        SelectedRows(rows, sum(selected.num_kept for _, _, selected in parts)),
        on_policy,
        metrics,
    )


def _environment_metrics(session: Session, numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each number over the rollouts of all ranks, ``environment/...``; a collective."""
    if session.environment is None:
        return {}
    engine = session.engine
    values: dict[str, list[float]] = {}
    for rollout in collectives.gather_objects(numbers, engine.dp_group, engine.dp_degree):
        for name, value in rollout.items():
            values.setdefault(name, []).append(value)
    return {f"environment/{name}": sum(each) / len(each) for name, each in values.items()}


def _with_advantage(local: TensorDict, batch: TensorDict) -> TensorDict:
    """Returns this rank's rows that are trained on, with their texts and advantages."""
    position = {int(row): index for index, row in enumerate(batch["row_id"])}
    indices = [index for index, row in enumerate(local["row_id"]) if int(row) in position]
    rows = local[indices].copy()
    if "advantage" not in batch:
        return rows
    advantage = batch["advantage"][[position[int(row)] for row in rows["row_id"]]]
    return rows.set("advantage", advantage[:, : rows["loss_mask"].shape[1]])
