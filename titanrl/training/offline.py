"""The offline loop: load examples, score, compute advantages, compute loss weights, update.

It covers supervised, preference, reward-model and process-reward training, and distillation on a dataset.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from titanrl.algorithm.compute_advantages import compute_loss_weights
from titanrl.algorithm.metrics import means
from titanrl.data.collate import collate_examples
from titanrl.data.encode import TokenizedExample
from titanrl.data.examples import ExampleLoader, training_data
from titanrl.engine import collectives
from titanrl.errors import TrainingError
from titanrl.eval.reward_model import reward_model_metrics
from titanrl.protocols.batch import check
from titanrl.registry import declared
from titanrl.registry.loops import register_loop
from titanrl.training.run import StageTimer, TrainLoop
from titanrl.training.session import Session
from titanrl.training.stages import evaluate_prompts, score_models, sync
from titanrl.training.step import gather_and_compute_advantages, optimize

if TYPE_CHECKING:
    from tensordict import TensorDict


__all__ = ["offline", "train_step", "validate"]


@register_loop("offline")
def offline() -> TrainLoop[ExampleLoader]:
    """Returns the loop that trains on the examples of a dataset."""
    return TrainLoop(open_loader=training_data, step=train_step, validate=validate, sync=_sleep)


def train_step(
    session: Session[ExampleLoader], step: int, timer: StageTimer
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Makes one training step; returns its metrics and some of its rows.

    Args:
        session: the run.
        step: number of the training step, from 0.
        timer: measures the stages.

    Raises:
        TrainingError: the filters dropped every example of every attempt.
    """
    loop, dropped = session.loop, 0
    for attempt in range(loop.max_resample_attempts + 1):
        with timer("data"):
            groups, num_overlong = session.loader.next_batch(loop.prompts_per_step)
            dropped += num_overlong
            local = _local(session, groups, first_group=attempt * loop.prompts_per_step)
        with timer("score"):
            local = score_models(session, local, on_policy=True)
        with timer("estimate"):
            scored, batch, metrics = gather_and_compute_advantages(session, local, on_policy=True)
        if len(batch):
            break
    else:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every example in {loop.max_resample_attempts + 1} attempts of "
            f"step {step}; loosen the filter, raise [loop] max_resample_attempts, or check the data."
        )
    with timer("update"):
        sums = optimize(session, batch, step, on_policy=True)
    metrics |= means(sums) | _data_metrics(groups, session.loader.epoch, dropped)
    session.control(metrics, num_sequences=len(scored), step=step)
    return metrics, _sample_rows(session, groups)


def validate(session: Session[ExampleLoader]) -> dict[str, float]:
    """Returns the ``eval/...`` metrics on held-out examples, held-out prompts, or both."""
    metrics = {} if session.eval_examples is None else _held_out_loss(session, session.eval_examples)
    if session.eval_prompts is not None:
        sync(session, session.state.step)
        metrics |= evaluate_prompts(session)
        session.sampler.sleep()
    return metrics


def _sleep(session: Session[ExampleLoader], version: int) -> None:
    """Puts the sampler to sleep: only validations use it, and they send it the weights."""
    del version
    if session.live_sampler is not None:
        session.live_sampler.sleep()


def _held_out_loss(session: Session[ExampleLoader], held_out: ExampleLoader) -> dict[str, float]:
    assert session.evaluation is not None
    engine = session.engine
    groups = list(held_out.iterate_once(session.evaluation.num_prompts))
    if not groups:
        raise TrainingError("[evaluation.data] has no example that fits into [training] seq_len; raise it.")
    # A copy, because a validation must not change the state of the components.
    validation = replace(session, algorithm=copy.deepcopy(session.algorithm))
    local = score_models(validation, _local(validation, groups, loader=held_out), on_policy=True)
    _, batch, _ = gather_and_compute_advantages(validation, local, on_policy=True)
    rows = collectives.shard_batch(
        compute_loss_weights(batch, validation.algorithm), engine.dp_rank, engine.dp_degree
    )
    sums = engine.measure(rows, session.objective, session.coefficients())
    measured = {name: value for name, value in means(sums).items() if not name.startswith("update/")}
    measured["loss/nonfinite"] = float(not math.isfinite(measured["loss/total"]))
    names = {"loss/total": "eval/loss"}
    metrics = {names.get(name, f"eval/{name.removeprefix('loss/')}"): each for name, each in measured.items()}
    if validation.is_value_model:
        paired = declared(session.objective.loss, "paired")
        metrics |= reward_model_metrics(engine, rows, paired=paired)
    return metrics | {"eval/num_examples": float(len(groups))}


def _local(
    session: Session[ExampleLoader],
    groups: Sequence[Sequence[TokenizedExample]],
    *,
    first_group: int = 0,
    loader: ExampleLoader | None = None,
) -> TensorDict:
    """Returns this rank's share of the groups as a batch.

    Args:
        session: the run.
        groups: tokenized examples of all ranks.
        first_group: group_id of the first group.
        loader: loader of the groups; None: that of the training data.
    """
    loader = session.loader if loader is None else loader
    batch = collate_examples(groups, out_keys=loader.settings.out_keys, first_group=first_group)
    check(batch, "sample", loader.settings.out_keys)
    shard = session.shard_slice(len(groups))
    start, stop = (sum(map(len, groups[:end])) for end in (shard.start, shard.stop))
    return batch[start:stop]


def _data_metrics(
    groups: Sequence[Sequence[TokenizedExample]], epoch: float, dropped: int
) -> dict[str, float]:
    rows = [row for group in groups for row in group]
    lengths = [len(row.ids) for row in rows]
    return {
        "data/epoch": epoch,
        "data/rows": float(len(rows)),
        "data/row_tokens_mean": sum(lengths) / len(lengths),
        "data/row_tokens_max": float(max(lengths)),
        "data/loss_tokens": float(sum(sum(row.loss_mask) for row in rows)),
        "data/dropped": float(dropped),
    }


def _sample_rows(
    session: Session[ExampleLoader], groups: Sequence[Sequence[TokenizedExample]]
) -> list[dict[str, Any]]:
    """Returns the first rows of the step as texts, split at the first loss token."""
    decode = session.tokenizer.decode_prompt
    rows = [(number, row) for number, group in enumerate(groups) for row in group]
    return [
        {
            "prompt": decode(row.ids[: row.loss_mask.index(True)]),
            "response": decode(row.ids[row.loss_mask.index(True) :]),
            "loss_tokens": sum(row.loss_mask),
            "tokens": len(row.ids),
            "group": number,
            **row.scalars,
        }
        for number, row in rows[: session.logged_samples]
    ]
