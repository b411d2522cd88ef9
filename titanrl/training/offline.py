"""Training on fixed answers, whole: rows, score, estimate, weigh, update, report.

Supervised, preference, reward-model and process-reward training, and distillation on a data set.
"""

from __future__ import annotations

import copy
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
from titanrl.eval.evaluate import evaluate
from titanrl.eval.reward_model import held_out_scores
from titanrl.protocols.batch import check
from titanrl.training.run import StageTimer, TrainLoop, run
from titanrl.training.session import Session
from titanrl.training.stages import score_models, sync
from titanrl.training.step import gather_and_compute_advantages, optimize

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict

    from titanrl.config.experiment import Experiment

__all__ = ["train", "train_step", "validate"]


def train(experiment: Experiment, *, resume: bool = False) -> Path:
    """Runs an experiment with [data] to its last step and returns its run folder.

    Raises:
        ConfigError: what only the data can tell: bad rows, rows that are too long.
        TrainingError: nothing is left to train on.
    """
    procedure = TrainLoop(feed=training_data, step=train_step, validate=validate, sync=_rest)
    return run(procedure, experiment, resume=resume)


def train_step(
    session: Session[ExampleLoader], step: int, clock: StageTimer
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Moves the weights by one step; returns its metrics and some of its rows.

    Raises:
        TrainingError: the filters dropped every group of every draw.
    """
    loop, dropped = session.experiment.loop, 0
    for draw in range(loop.max_resample_attempts + 1):
        with clock("data"):
            groups, too_long = session.feed.next_batch(loop.prompts_per_step)
            dropped += too_long
            local = _local(session, groups, first_group=draw * loop.prompts_per_step)
        with clock("score"):
            local = score_models(session, local)
        with clock("estimate"):
            whole, batch, metrics = gather_and_compute_advantages(session, local)
        if len(batch):
            break
    else:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every example of {loop.max_resample_attempts + 1} draws in step {step}; "
            "loosen the filter, raise [loop] max_resample_attempts, or check the data."
        )
    with clock("update"):
        sums = optimize(session, batch, step)
    metrics |= means(sums) | _data_metrics(groups, session.feed.epoch, dropped)
    session.control(metrics, num_sequences=len(whole), step=step)
    return metrics, _shown(session, groups)


def validate(session: Session[ExampleLoader]) -> dict[str, float]:
    """Returns what is held out says of the weights, ``eval/...``; nothing is trained.

    That is the loss of examples and all that it reports, the score of sampled answers to prompts, or both.
    """
    metrics = {} if session.held_out_data is None else _held_out_loss(session, session.held_out_data)
    if session.held_out is not None:
        sync(session, session.state.step)
        metrics |= evaluate(session)
        session.sampler.sleep()
    return metrics


def _rest(session: Session[ExampleLoader], version: int) -> None:
    """A sampler, if there is one, answers held-out prompts only and gets its weights for them."""
    del version
    if session.live_sampler is not None:
        session.live_sampler.sleep()


def _held_out_loss(session: Session[ExampleLoader], held_out: ExampleLoader) -> dict[str, float]:
    assert session.experiment.evaluation is not None
    engine = session.engine
    groups = list(held_out.iterate_once(session.experiment.evaluation.num_prompts))
    if not groups:
        raise TrainingError("[evaluation.data] holds no example that fits into [training] seq_len; raise it.")
    # A copy, as estimators may keep a memory of what they have seen.
    judging = replace(session, experiment=copy.deepcopy(session.experiment))
    local = score_models(judging, _local(judging, groups, out_of=held_out))
    _, batch, _ = gather_and_compute_advantages(judging, local)
    rows = collectives.shard_batch(
        compute_loss_weights(batch, judging.experiment.algorithm), engine.dp_rank, engine.dp_degree
    )
    sums = engine.measure(rows, session.objective, session.coefficients())
    judged = {name: value for name, value in means(sums).items() if not name.startswith("update/")}
    names = {"loss/total": "eval/loss"}
    metrics = {names.get(name, f"eval/{name.removeprefix('loss/')}"): each for name, each in judged.items()}
    if judging.experiment.model.head == "value":
        metrics |= held_out_scores(session, rows)
    return metrics | {"eval/num_examples": float(len(groups))}


def _local(
    session: Session[ExampleLoader],
    groups: Sequence[Sequence[TokenizedExample]],
    *,
    first_group: int = 0,
    out_of: ExampleLoader | None = None,
) -> TensorDict:
    """Returns this rank's share of the groups as a batch."""
    feed = session.feed if out_of is None else out_of
    batch = collate_examples(groups, out_keys=feed.settings.out_keys, first_group=first_group)
    check(batch, "sample", feed.settings.out_keys)
    mine = session.shard_slice(len(groups))
    start, stop = (sum(map(len, groups[:end])) for end in (mine.start, mine.stop))
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
        "data/loss_tokens": float(sum(sum(row.trained) for row in rows)),
        "data/dropped": float(dropped),
    }


def _shown(
    session: Session[ExampleLoader], groups: Sequence[Sequence[TokenizedExample]]
) -> list[dict[str, Any]]:
    """Returns the first rows of the step as texts, what is trained apart from what comes before."""
    decode = session.tokens.decode_prompt
    rows = [(number, row) for number, group in enumerate(groups) for row in group]
    return [
        {
            "prompt": decode(row.ids[: row.trained.index(True)]),
            "response": decode(row.ids[row.trained.index(True) :]),
            "trained_tokens": sum(row.trained),
            "tokens": len(row.ids),
            "group": number,
            **row.scalars,
        }
        for number, row in rows[: session.experiment.report.samples_per_step]
    ]
