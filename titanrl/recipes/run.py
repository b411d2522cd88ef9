"""Run the stages of a recipe in sequence; finished stages are not repeated."""

from __future__ import annotations

import gc
import json
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
from titanrl.recipes.summary import StageResult, describe_data, describe_run, summarize
from titanrl.report.folder import RunFolder, write_atomic
from titanrl.rollout.rejection_sampling import collect
from titanrl.training.run import train

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.recipes.settings import Recipe, Stage

__all__ = ["run_recipe"]


def run_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    log: Callable[[str], None] = print,
) -> list[StageResult]:
    """Run the unfinished stages and return the results of all stages, the initial model's first.

    An interrupted stage resumes: training at its newest checkpoint, sampling at the next prompt. Models are
    evaluated again if the evaluation file has changed. ``folder`` gets one folder per stage (run and model,
    or data), ``summary.json`` and ``summary.png``. All ranks call this function with the same arguments.

    Args:
        recipe: a recipe from ``load_recipe``.
        folder: folder of the recipe's run.
        rank: rank of this process; rank 0 writes and logs.
        world_size: number of ranks.
        log: logs one line.

    Raises:
        ConfigError: a finished stage was run with other settings; or an error that only a stage's model, data
            or machine reveals.
    """
    init_distributed()
    is_main = rank == 0
    results: list[StageResult] = []
    if recipe.evaluate is not None:
        initial = recipe.experiment(recipe.stage[0], folder).model.path
        start = StageResult("start", "start", None, initial, 0.0)
        results.append(_with_scores(recipe, start, initial, folder, is_main))
    for number, stage in enumerate(recipe.stage, 1):
        experiment, stage_folder = recipe.experiment(stage, folder), folder / stage.name
        if (stage_folder / "stage.json").is_file():
            _check_unchanged(experiment, stage, stage_folder)
        elif is_main:
            log(f"stage {number} of {len(recipe.stage)}, {stage.name}: {stage.kind} {stage.file}")
        try:
            work = partial(_run, stage, experiment, stage_folder, is_main, world_size)
            result = StageResult(**_cached(stage_folder / "stage.json", is_main, work))
            is_policy = stage.kind == "train" and experiment.model.head == "language"
            if recipe.evaluate is not None and is_policy:
                result = _with_scores(recipe, result, stage_folder / "model", stage_folder, is_main)
            results.append(result)
        except BaseException:
            if is_main:
                log(f"stage {stage.name!r} did not finish; run the same command again to resume it.")
            raise
    if is_main:
        summarize(results, folder)
    return results


def _cached(
    file: Path,
    is_main: bool,
    work: Callable[[], dict[str, Any]],
    is_valid: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the content of a JSON file, or the result of ``work``, which is written to the file.

    Args:
        file: the JSON file.
        is_main: whether this rank writes.
        work: computes the content.
        is_valid: whether existing content may be used.
    """
    content: dict[str, Any] | None = collectives.broadcast_object(
        json.loads(file.read_text("utf-8")) if file.is_file() else None
    )
    if content is not None and is_valid(content):
        return content
    result = work()
    gc.collect()  # Frees this stage's models before the next stage loads its own.
    if is_main:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(result, indent=2) + "\n")
    return result


def _with_scores(
    recipe: Recipe, result: StageResult, model: Path | str, folder: Path, is_main: bool
) -> StageResult:
    """Return a result with its model's held-out scores, cached in ``folder`` until the evaluation changes."""
    evaluation = recipe.evaluation_of(model)
    settings = json.loads(json.dumps(to_table(evaluation)))

    def work() -> dict[str, Any]:
        began = time.perf_counter()
        scores = evaluate_model(evaluation).to_json()
        return {"evaluation": settings, "scores": scores, "seconds": time.perf_counter() - began}

    cached = _cached(
        folder / "scores.json", is_main, work, lambda content: content.get("evaluation") == settings
    )
    return result._replace(scores=cached["scores"], seconds=result.seconds + cached["seconds"])


def _run(
    stage: Stage, experiment: Experiment, folder: Path, is_main: bool, world_size: int
) -> dict[str, Any]:
    """Run one stage and return its result."""
    if problems := preflight(experiment, world_size):
        raise ConfigError(problems, file=stage.file)
    began = time.perf_counter()
    if stage.kind == "rft":
        remark = describe_data(collect(experiment, folder / "data").with_name("statistics.json"))
    else:
        _train(experiment, folder, is_main)
        remark = describe_run(RunFolder(folder / "run").metrics)
    return StageResult(stage.name, stage.kind, None, remark, time.perf_counter() - began)._asdict()


def _train(experiment: Experiment, folder: Path, is_main: bool) -> None:
    """Train, or resume training, and export the model."""
    run, model = RunFolder(folder / "run"), folder / "model"
    if not collectives.broadcast_object(model.exists()):
        is_resumable = collectives.broadcast_object(run.config.is_file() and run.has_checkpoint)
        if is_main and not is_resumable and (aside := run.set_aside()) is not None:
            print(f"starts again: the run had no checkpoint; its records are in {aside}", flush=True)
        collectives.broadcast_object(None)
        train(experiment, resume=is_resumable)
        gc.collect()
        # The next stage starts from the master weights, without rounding.
        export_run(run.path, model, dtype="float32")
    collectives.broadcast_object(None)  # Waits until rank 0 has renamed the exported folder.


def _check_unchanged(experiment: Experiment, stage: Stage, folder: Path) -> None:
    """Raise ConfigError if a finished stage was run with other settings."""
    stored = folder / ("run" if stage.kind == "train" else "data")
    # Loaded rather than compared as text: keys that were added since then have their defaults.
    if keys := difference(to_table(load(RunFolder(stored).config)), to_table(experiment)):
        raise ConfigError(
            f"stage {stage.name!r} was finished with other values of {keys}; remove '{folder}' and the "
            "folders of the later stages that use it, or choose another --output."
        )
