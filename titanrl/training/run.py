"""Runs an experiment with any training loop, from its run folder to its last step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from titanrl.engine import collectives, init_distributed
from titanrl.errors import TrainingError
from titanrl.registry import name_of
from titanrl.registry.loops import training_loop
from titanrl.report.alerts import ALWAYS_STOPS, AlertMonitor
from titanrl.report.profile import profiled
from titanrl.report.recorder import Recorder
from titanrl.runtime import status
from titanrl.runtime.stop import abandonable, completing
from titanrl.training.opening import OpenedRun, open_run
from titanrl.training.session import Loader, Session, open_session
from titanrl.training.stopping import is_stopped, save_for_stop, saving_if_abandoned

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.algorithm.table import Algorithm
    from titanrl.config.alerts import Alerts
    from titanrl.config.experiment import Experiment
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.report.alerts import Alert

__all__ = ["StageTimer", "TrainLoop", "run", "train"]


class StageTimer:
    """Seconds spent by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        status.update(stage=stage)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop(Generic[Loader]):
    """The four functions in which training loops differ; ``register_loop`` gives a loop its name.

    All of them run on every rank.
    """

    open_loader: Callable[[Experiment, ChatTokenizer], Loader]
    """Opens the training data."""
    step: Callable[[Session[Loader], int, StageTimer], tuple[dict[str, float], Sequence[Mapping[str, Any]]]]
    """Makes one training step; returns its metrics, and rows for samples.jsonl."""
    validate: Callable[[Session[Loader]], dict[str, float]]
    """Returns the ``eval/...`` metrics on held-out prompts or data."""
    sync: Callable[[Session[Loader], int], None]
    """Sends the weights of a policy version to the sampler."""


def train(experiment: Experiment, *, resume: bool = False, accept: Sequence[str] = ()) -> Path:
    """Trains to the last step with the loop that [loop] kind names, and returns the run folder.

    Without ``kind``, that is ``online`` for [prompts] and ``offline`` for [data].

    Args:
        experiment: a checked experiment.
        resume: continue from the newest complete checkpoint of the newest run of that name.
        accept: keys whose changes since that run are accepted, although they change what it measures.

    Raises:
        ConfigError: a mistake that only shows on this machine or with this data, such as an overlong prompt;
            or the run cannot be resumed.
        TrainingError: the filters dropped everything, or an alert stopped the run.
    """
    return run(training_loop(experiment.loop_kind), experiment, resume=resume, accept=accept)


def run(loop: TrainLoop[Loader], experiment: Experiment, *, resume: bool, accept: Sequence[str] = ()) -> Path:
    """Runs an experiment to its last step and returns its run folder.

    Args:
        loop: makes the steps.
        experiment: a checked experiment.
        resume: continue from the newest complete checkpoint of the newest run of that name.
        accept: keys whose changes since that run are accepted, although they change what it measures.

    Raises:
        ConfigError: the run cannot be resumed.
        TrainingError: a step raised an alert that stops the run; its checkpoint is written.
    """
    experiment = copy.deepcopy(experiment)  # its components hold state
    init_distributed()
    with open_run(experiment, resume=resume, accept=accept) as opened:
        return opened.folder.path if opened.is_finished else _train(loop, experiment, opened)


def _train(loop: TrainLoop[Loader], experiment: Experiment, opened: OpenedRun) -> Path:
    """Makes the steps of an opened run and returns its folder."""
    folder, steps = opened.folder, experiment.loop.steps
    with abandonable():
        session = _open_session(loop, experiment, opened)
    with closing(session):
        done = session.state.step
        opened.begin(done)
        stopped_by = ""
        recorder = Recorder(
            folder,
            experiment.report,
            steps=steps,
            done=done,
            enabled=session.is_main,
            monitor=_monitor(experiment.alerts, experiment.algorithm, is_online=experiment.data is None),
            # Old and new policy are equal in such a step.
            constant=("loss/clip_fraction",) if session.objective.on_policy else (),
        )
        with recorder:
            if experiment.compile.enable:
                opened.announce("compiling: the first step takes longer than the others")
            loop.sync(session, done)
            if done == 0 and _is_validation_due(session):
                metrics = loop.validate(session)
                session.engine.require_metric(metrics)
                recorder.validation(metrics)
                recorder.failures(session.reasons)
            timer = StageTimer()
            for step in range(done, steps):
                status.update(step=step + 1)
                with (
                    saving_if_abandoned(session),
                    profiled(experiment.profile, step + 1, folder.profile, session.engine.rank),
                ):
                    metrics, samples = loop.step(session, step, timer)
                    session.state.step = step + 1
                    if any(metrics.get(f"{part}/nonfinite_gradients") for part in ("update", "critic")):
                        session.refuse_nonfinite_weights()
                    with timer("sync"):
                        loop.sync(session, step + 1)
                if _is_validation_due(session):
                    with timer("validate"), completing():
                        metrics |= loop.validate(session)
                recorder.failures(session.reasons)
                stopped_by = _stopped_by(recorder.alerts(step + 1, metrics), experiment.alerts)
                opened.check_owner()
                # Before the checkpoint: a run that ends in between repeats the step, and no line is missing.
                recorder.step(step + 1, metrics, timer.seconds, samples)
                timer = StageTimer()  # The times of the next step begin with this checkpoint.
                with timer("checkpoint"):
                    session.save(metrics, last=bool(stopped_by) and stopped_by not in ALWAYS_STOPS)
                if stopped_by:
                    break
                if step + 1 < steps and is_stopped():
                    raise save_for_stop(session)
            recorder.finish()
    if stopped_by:
        reason = "always stops a run" if stopped_by in ALWAYS_STOPS else "is listed in [alerts] stop"
        raise TrainingError(
            f"stopped in step {session.state.step}: alert {stopped_by} {reason}. See {folder.alerts} for "
            "details; --resume continues anyway."
        )
    return folder.path


def _open_session(loop: TrainLoop[Loader], experiment: Experiment, opened: OpenedRun) -> Session[Loader]:
    """Returns the session of an opened run, whose sources have not changed since it was started."""

    def open_loader(experiment: Experiment, tokenizer: ChatTokenizer) -> Loader:
        loader = loop.open_loader(experiment, tokenizer)
        opened.check_source("prompts" if experiment.data is None else "data", loader.source)
        return loader

    sampler = experiment.sampler
    starts = "" if sampler is None else f", starting the sampler {name_of(sampler)!r}"
    opened.announce(f"loading {experiment.model.path}{starts}")
    with opened.restoring():
        session = open_session(experiment, opened.folder.path, open_loader, resume=opened.resume)
    held_out = {"evaluation.prompts": session.eval_prompts, "evaluation.data": session.eval_examples}
    for table, each in held_out.items():
        if each is not None:
            opened.check_source(table, each.source)
    return session


def _monitor(limits: Alerts, algorithm: Algorithm, *, is_online: bool) -> AlertMonitor:
    """Returns the monitor that raises the alerts that can mean something in a run."""
    if not algorithm.compares_groups:
        limits = replace(limits, zero_std_groups=math.inf)
    if not is_online:  # Supervised training may end with a low entropy.
        limits = replace(limits, entropy=0.0)
    return AlertMonitor(limits)


def _stopped_by(raised: Sequence[Alert], alerts: Alerts) -> str:
    """Returns the first of the raised alerts that stops the run, the same on every rank; "" if none does."""
    stopping = {*alerts.stop, *ALWAYS_STOPS}
    return str(
        collectives.broadcast_object(next((each.name for each in raised if each.name in stopping), ""))
    )


def _is_validation_due(session: Session[Any]) -> bool:
    """Returns whether to validate now: before the first step, at every interval, after the last step."""
    settings, step = session.evaluation, session.state.step
    if settings is None:
        return False
    return step in (0, session.loop.steps) or bool(settings.interval and step % settings.interval == 0)
