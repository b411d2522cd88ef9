"""The online loop: sample, score, compute advantages, compute loss weights, update, sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.algorithm.metrics import means
from titanrl.data.prompts import PromptLoader, training_prompts
from titanrl.errors import TrainingError
from titanrl.protocols.batch import check
from titanrl.registry.loops import register_loop
from titanrl.rollout.sample_rows import sample_rows
from titanrl.training.run import StageTimer, TrainLoop
from titanrl.training.stages import (
    batch_metrics,
    evaluate_prompts,
    is_on_policy,
    sample,
    score,
    sync,
)
from titanrl.training.step import gather_and_compute_advantages, optimize

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
    loop = session.loop
    for attempt in range(loop.max_resample_attempts + 1):
        with timer("sample"):
            requests = session.loader.next_batch(
                loop.prompts_per_step, loop.samples_per_prompt, first_group=attempt * loop.prompts_per_step
            )
            local, greedy_failures = sample(session, requests, step)
            check(local, "sample", session.out_keys)
        with timer("score"):
            on_policy = is_on_policy(session, local)
            local, failures = score(session, local, on_policy=on_policy)
        with timer("estimate"):
            scored, batch, metrics = gather_and_compute_advantages(session, local, on_policy=on_policy)
        if len(batch):
            break
    else:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every group in {loop.max_resample_attempts + 1} attempts of step "
            f"{step}; loosen the filter, raise [loop] max_resample_attempts, or choose prompts of another "
            "difficulty."
        )
    with timer("update"):
        session.sampler.sleep()
        sums = optimize(session, batch, step, on_policy=on_policy)
    failed = session.failed(failures, greedy_failures)
    metrics = batch_metrics(scored) | failed | metrics | means(sums)
    metrics["sample/resample_attempts"] = float(attempt)
    session.control(metrics, num_sequences=len(scored), step=step)
    rows = _with_advantage(local, batch)
    return metrics, sample_rows(rows, session.logged_samples, session.tokenizer.token_strings)


def _with_advantage(local: TensorDict, batch: TensorDict) -> TensorDict:
    """Returns this rank's rows that are trained on, with their texts and advantages."""
    position = {int(row): index for index, row in enumerate(batch["row_id"])}
    indices = [index for index, row in enumerate(local["row_id"]) if int(row) in position]
    rows = local[indices].copy()
    if "advantage" not in batch:
        return rows
    advantage = batch["advantage"][[position[int(row)] for row in rows["row_id"]]]
    return rows.set("advantage", advantage[:, : rows["loss_mask"].shape[1]])
