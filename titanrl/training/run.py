"""A run from its folder to its last step, whatever a step is made of."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from titanrl.config.dump import to_table
from titanrl.engine import collectives, init_distributed
from titanrl.errors import TrainingError
from titanrl.report.alerts import AlertMonitor
from titanrl.report.folder import RunFolder
from titanrl.report.profile import profiled
from titanrl.report.recorder import Recorder
from titanrl.training.session import Feed, Session, open_session

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["StageTimer", "TrainLoop", "run"]


class StageTimer:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop(Generic[Feed]):
    """What one way of training does between the start of a run and its end."""

    feed: Callable[[Experiment, ChatTokenizer], Feed]
    """Opens what is trained on."""
    step: Callable[[Session[Feed], int, StageTimer], tuple[dict[str, float], Sequence[Mapping[str, Any]]]]
    """Moves the weights by one step; returns its metrics and a few of its rows for samples.jsonl."""
    validate: Callable[[Session[Feed]], dict[str, float]]
    """Returns metrics of what is held out."""
    sync: Callable[[Session[Feed], int], None]
    """Tells whoever samples that the weights are those of a version."""


def run(procedure: TrainLoop[Feed], experiment: Experiment, *, resume: bool) -> Path:
    """Runs an experiment to its last step and returns its run folder.

    Args:
        experiment: a checked experiment.
        resume: carry on from the newest whole checkpoint of the newest run of that name.

    Raises:
        TrainingError: a step raised an alert that ends the run; its checkpoint is written.
    """
    experiment = copy.deepcopy(experiment)  # its controllers hold state
    table, steps = experiment.run, experiment.loop.steps
    init_distributed()
    folder = RunFolder(
        collectives.broadcast_object(RunFolder.choose(table.folder, table.name, resume=resume))
    )
    with closing(open_session(experiment, folder.path, procedure.feed, resume=resume)) as session:
        done = session.state.step
        if session.is_main and not resume:
            folder.write_identity(to_table(experiment), table.seed)
        ended_by = ""
        with Recorder(
            folder, experiment.report, steps=steps, done=done, enabled=session.is_main,
            monitor=_watch(experiment),
        ) as recorder:  # fmt: skip
            procedure.sync(session, done)
            if done == 0 and _is_due(session):
                recorder.validation(procedure.validate(session))
                recorder.failures(session.reasons)
            for step in range(done, steps):
                clock = StageTimer()
                with profiled(experiment.profile, step + 1, folder.profile, session.engine.rank):
                    metrics, samples = procedure.step(session, step, clock)
                    session.state.step = step + 1
                    with clock("sync"):
                        procedure.sync(session, step + 1)
                if _is_due(session):
                    with clock("validate"):
                        metrics |= procedure.validate(session)
                recorder.failures(session.reasons)
                ended_by = _ended_by(recorder.alerts(step + 1, metrics), experiment)
                with clock("checkpoint"):
                    session.save(last=bool(ended_by))
                recorder.step(step + 1, metrics, clock.seconds, samples)
                if ended_by:
                    break
            recorder.finish()
    if ended_by:
        raise TrainingError(
            f"step {session.state.step} raised the alert {ended_by}, which [alerts] stop names; "
            f"{folder.alerts} says why, and --resume goes on nonetheless."
        )
    return folder.path


def _watch(experiment: Experiment) -> AlertMonitor | None:
    """Returns who raises alerts; None where answers are fixed."""
    if experiment.data is not None:
        return None
    limits = experiment.alerts
    return AlertMonitor(
        limits if experiment.algorithm.compares_groups else replace(limits, zero_std_groups=math.inf)
    )


def _ended_by(raised: Sequence[str], experiment: Experiment) -> str:
    """Returns the first of the raised alerts that ends the run, the same on every rank; "" if none does."""
    stops = experiment.alerts.stop
    return (
        str(collectives.broadcast_object(next((name for name in raised if name in stops), "")))
        if stops
        else ""
    )


def _is_due(session: Session[Any]) -> bool:
    """Whether what is held out is judged now: before the first step, every so many, after the last."""
    settings, step = session.experiment.evaluation, session.state.step
    if settings is None:
        return False
    return step in (0, session.experiment.loop.steps) or bool(settings.every and step % settings.every == 0)
