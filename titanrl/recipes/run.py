"""The stages of a pipeline one after the other; what is finished is not done again."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrl.config.dump import difference, to_table
from titanrl.config.load import load
from titanrl.engine import collectives, init_distributed
from titanrl.engine.export import export_run
from titanrl.errors import ConfigError
from titanrl.eval.evaluate import evaluate_model
from titanrl.preflight.verify import preflight
from titanrl.recipes.summary import StageResult, remark_of_data, remark_of_run, summarize
from titanrl.report.folder import RunFolder, write_atomic
from titanrl.rollout.rejection_sampling import collect
from titanrl.training.run import train

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.recipes.settings import Pipeline, Stage

__all__ = ["run_recipe"]


def run_recipe(
    pipeline: Pipeline,
    folder: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    say: Callable[[str], None] = print,
) -> list[StageResult]:
    """Runs what is not finished yet and returns the results of all stages, the untrained model's first.

    A stage that was broken off carries on where it stood: training at its newest checkpoint, sampling at the
    next prompt. Models are judged anew where the file that judges has changed. ``folder`` gets a folder for
    each stage (run and model, or data), ``summary.json`` and ``summary.png``. Every rank calls it alike.

    Args:
        pipeline: as ``load_pipeline`` gives it. rank: of this process; the first writes and speaks.
        say: prints a line.

    Raises:
        ConfigError: a finished stage was another experiment than it is now, or what only a stage's model,
            data or machine reveal.
    """
    init_distributed()
    is_main = rank == 0
    results: list[StageResult] = []
    if pipeline.evaluate is not None:
        first = pipeline.experiment(pipeline.stage[0], folder).model.path
        results.append(
            _judged(pipeline, StageResult("start", "start", None, first, 0.0), first, folder, is_main)
        )
    for number, stage in enumerate(pipeline.stage, 1):
        experiment, home = pipeline.experiment(stage, folder), folder / stage.name
        if (home / "stage.json").is_file():
            _refuse_another(experiment, stage, home)
        elif is_main:
            say(f"stage {number} of {len(pipeline.stage)}, {stage.name}: {stage.kind} {stage.file}")
        try:
            work = partial(_run, stage, experiment, home, is_main, world_size)
            result = StageResult(**_once(home / "stage.json", is_main, work))
            is_policy = stage.kind == "train" and experiment.model.head == "language"
            if pipeline.evaluate is not None and is_policy:
                result = _judged(pipeline, result, home / "model", home, is_main)
            results.append(result)
        except BaseException:
            if is_main:
                say(f"stage {stage.name!r} did not end; the same command carries on from there.")
            raise
    if is_main:
        summarize(results, folder)
    return results


def _once(
    marker: Path,
    is_main: bool,
    work: Callable[[], dict[str, Any]],
    holds: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Returns what ``marker`` has, if that still holds, or what ``work`` returns, and writes it there."""
    written: dict[str, Any] | None = collectives.broadcast_object(
        json.loads(marker.read_text("utf-8")) if marker.is_file() else None
    )
    if written is not None and holds(written):
        return written
    result = work()
    gc.collect()  # Before the next stage's models come.
    if is_main:
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(marker, json.dumps(result, indent=2) + "\n")
    return result


def _judged(
    pipeline: Pipeline, result: StageResult, model: Path | str, home: Path, is_main: bool
) -> StageResult:
    """Returns a result with its model's held-out scores, kept in ``home`` until the judging file changes."""
    judge = pipeline.judge(model)
    of = json.loads(json.dumps(to_table(judge)))

    def work() -> dict[str, Any]:
        began = time.perf_counter()
        scores = evaluate_model(judge).to_json()
        return {"judge": of, "scores": scores, "seconds": time.perf_counter() - began}

    kept = _once(home / "scores.json", is_main, work, lambda written: written["judge"] == of)
    return result._replace(scores=kept["scores"], seconds=result.seconds + kept["seconds"])


def _run(stage: Stage, experiment: Experiment, home: Path, is_main: bool, world_size: int) -> dict[str, Any]:
    if problems := preflight(experiment, world_size):
        raise ConfigError(problems, file=stage.file)
    began = time.perf_counter()
    if stage.kind == "rft":
        remark = remark_of_data(collect(experiment, home / "data").with_name("statistics.json"))
    else:
        _train(experiment, home, is_main)
        remark = remark_of_run(RunFolder(home / "run").metrics)
    return StageResult(stage.name, stage.kind, None, remark, time.perf_counter() - began)._asdict()


def _train(experiment: Experiment, home: Path, is_main: bool) -> None:
    """Trains, or carries on training, and exports the model."""
    run, model = RunFolder(home / "run"), home / "model"
    begun = collectives.broadcast_object(run.config.is_file())
    if is_main and not begun:
        shutil.rmtree(run.path, ignore_errors=True)  # What a run left that ended before it began.
    collectives.broadcast_object(None)
    if not collectives.broadcast_object(model.exists()):
        train(experiment, resume=begun)
        gc.collect()
        export_run(run.path, model)
    collectives.broadcast_object(None)  # The first rank has given the folder its name.


def _refuse_another(experiment: Experiment, stage: Stage, home: Path) -> None:
    """Raises ConfigError where a finished stage was another experiment."""
    folder = home / ("run" if stage.kind == "train" else "data")
    # Read as of today: a stage made before some key was there has that key's default.
    if keys := difference(to_table(load(RunFolder(folder).config)), to_table(experiment)):
        raise ConfigError(
            f"stage {stage.name!r} was finished with other values of {keys}; remove '{home}' and the folders "
            "of what follows from it, or name another --to."
        )
