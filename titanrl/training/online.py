"""The reinforcement-learning loop, whole: sample, score, estimate, weigh, update, sync, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.algorithm.metrics import means
from titanrl.data.prompts import training_prompts
from titanrl.errors import TrainingError
from titanrl.eval.evaluate import evaluate
from titanrl.protocols.batch import check
from titanrl.rollout.sample_rows import sample_rows
from titanrl.training import offline
from titanrl.training.run import StageTimer, TrainLoop, run
from titanrl.training.session import Session
from titanrl.training.stages import batch_metrics, sample, score, sync
from titanrl.training.step import gather_and_compute_advantages, optimize

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict

    from titanrl.config.experiment import Experiment

__all__ = ["train", "train_step"]


def train(experiment: Experiment, *, resume: bool = False) -> Path:
    """Runs an experiment of either kind, sampled or fixed answers, and returns its run folder.

    Args:
        experiment: a checked experiment.
        resume: carry on from the newest whole checkpoint of the newest run of that name.

    Raises:
        ConfigError: what only the running machine can know, such as a prompt that is too long.
        TrainingError: nothing is left to train on.
    """
    if experiment.data is not None:
        return offline.train(experiment, resume=resume)
    procedure = TrainLoop(feed=training_prompts, step=train_step, validate=evaluate, sync=sync)
    return run(procedure, experiment, resume=resume)


def train_step(
    session: Session, step: int, clock: StageTimer
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Moves the weights by one step; returns its metrics and some of this rank's rows.

    Raises:
        TrainingError: the filters dropped every group of every draw.
    """
    loop = session.experiment.loop
    for draw in range(loop.max_resample_attempts + 1):
        with clock("sample"):
            asked = session.feed.next_batch(
                loop.prompts_per_step, loop.samples_per_prompt, first_group=draw * loop.prompts_per_step
            )
            local, greedy_failures = sample(session, asked, step)
            check(local, "sample")
        with clock("score"):
            local, failures = score(session, local)
        with clock("estimate"):
            whole, batch, metrics = gather_and_compute_advantages(session, local)
        if len(batch):
            break
    else:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every group of {loop.max_resample_attempts + 1} draws in step {step}; "
            "loosen the filter, raise [loop] max_resample_attempts, or choose prompts of another difficulty."
        )
    with clock("update"):
        session.sampler.sleep()
        sums = optimize(session, batch, step)
    failed = session.failed(failures, greedy_failures)
    metrics = (
        batch_metrics(whole) | failed | metrics | means(sums) | {"sample/resample_attempts": float(draw)}
    )
    session.control(metrics, num_sequences=len(whole), step=step)
    shown = _with_advantage(local, batch)
    return metrics, sample_rows(
        shown, session.experiment.report.samples_per_step, session.tokens.token_strings
    )


def _with_advantage(local: TensorDict, batch: TensorDict) -> TensorDict:
    """Returns this rank's rows, with texts, that also stand in the estimated batch, with any advantages."""
    position = {int(row): index for index, row in enumerate(batch["row_id"])}
    kept = [index for index, row in enumerate(local["row_id"]) if int(row) in position]
    rows = local[kept].copy()
    if "advantage" not in batch:
        return rows
    chosen = batch[[position[int(row)] for row in rows["row_id"]]]
    length = rows["loss_mask"].shape[1]
    return rows.set("advantage", chosen["advantage"][:, :length])
