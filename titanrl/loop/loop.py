"""The reinforcement-learning loop, whole: sample, score, estimate, weigh, update, sync, report."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from titanrl.config.dump import to_table
from titanrl.engine import start
from titanrl.errors import TrainingError
from titanrl.loop import exchange
from titanrl.loop.estimate import estimate, weigh
from titanrl.loop.evaluation import evaluate
from titanrl.loop.minibatches import minibatches
from titanrl.loop.session import Session, open_session
from titanrl.loop.stages import batch_metrics, sample, sample_rows, score, sync
from titanrl.metrics import Sums, add, means
from titanrl.report.folder import RunFolder
from titanrl.report.recorder import Recorder
from titanrl.schema import check

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict

    from titanrl.config.experiment import Experiment

__all__ = ["Clock", "train", "train_step"]


def train(experiment: Experiment, *, resume: bool = False) -> Path:
    """Runs an experiment to its last step and returns its run folder.

    Args:
        experiment: a checked experiment.
        resume: carry on from the newest whole checkpoint of the newest run of that name.

    Raises:
        ConfigError: what only the running machine can know, such as a prompt that is too long.
        TrainingError: nothing is left to train on.
    """
    experiment = copy.deepcopy(experiment)  # its controllers hold state
    run, report, steps = experiment.run, experiment.report, experiment.loop.steps
    start()
    folder = RunFolder(exchange.agree(RunFolder.choose(run.folder, run.name, resume=resume)))
    with closing(open_session(experiment, folder.path, resume=resume)) as session:
        done = session.state.step
        if session.is_main and not resume:
            folder.write_identity(to_table(experiment), run.seed)
        with Recorder(
            folder, steps=steps, done=done, enabled=session.is_main,
            tensorboard=report.tensorboard, progress=report.progress,
        ) as recorder:  # fmt: skip
            sync(session, version=done)
            if done == 0:
                recorder.validation(_validation(session))
            for step in range(done, steps):
                clock = Clock()
                batch, metrics = train_step(session, step, clock)
                session.state.step = step + 1
                with clock("sync"):
                    sync(session, version=step + 1)
                with clock("validate"):
                    metrics |= _validation(session)
                with clock("checkpoint"):
                    session.save()
                recorder.step(step + 1, metrics, clock.seconds, sample_rows(batch, report.samples_per_step))
            recorder.finish()
    return folder.path


def train_step(session: Session, step: int, clock: Clock) -> tuple[TensorDict, dict[str, float]]:
    """Moves the weights by one step; returns this rank's scored rows and the step's metrics.

    Raises:
        TrainingError: the filters dropped every group of every draw.
    """
    experiment, engine = session.experiment, session.engine
    loop, algorithm = experiment.loop, experiment.algorithm
    for draw in range(loop.max_resample + 1):
        with clock("sample"):
            local = sample(session, session.local_rows(first_group=draw * loop.prompts_per_step), step)
            check(local, "sample")
        with clock("score"):
            local, failures = score(session, local)
        with clock("estimate"):
            whole = exchange.gather(local, engine.dp_group, engine.dp_degree)
            check(whole, "score", session.scored_keys)
            batch, estimated = estimate(whole, algorithm)
            check(batch, "estimate")
        if len(batch):
            break
    else:
        raise TrainingError(
            f"[[algorithm.filter]] dropped every group of {loop.max_resample + 1} draws in step {step}; "
            "loosen the filter, raise [loop] max_resample, or choose prompts of another difficulty."
        )
    sums: Sums = {}
    with clock("update"):
        session.sampler.sleep()
        for part in minibatches(
            batch, count=loop.minibatches, epochs=loop.epochs, seed=session.seed, step=step
        ):
            weighed = weigh(part, algorithm)
            check(weighed, "weigh", ("loss_weight",))
            rows = exchange.share(weighed, engine.dp_rank, engine.dp_degree)
            sums = add(sums, engine.update(rows, session.objective, session.coefficients()))
    metrics = batch_metrics(whole) | failures | estimated | means(sums) | {"sample/redraws": float(draw)}
    session.control(metrics, num_sequences=len(whole), step=step)
    return _with_advantage(local, batch), metrics


class Clock:
    """Seconds spent by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began


def _validation(session: Session) -> dict[str, float]:
    """Returns the held-out score where one is due: before the first step, every so many, after the last."""
    settings, step = session.experiment.evaluation, session.state.step
    if settings is None:
        return {}
    due = step in (0, session.experiment.loop.steps) or (settings.every and step % settings.every == 0)
    return evaluate(session) if due else {}


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
