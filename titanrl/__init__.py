"""titanrl: a composable research framework for LLM post-training on TorchTitan.

Importing it loads no framework: settings, training and evaluation are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from titanrl.errors import ConfigError, SchemaError, TrainingError
from titanrl.protocols import Advantages, CorrectionResult, PolicyOutputs, Prompt, TokenLoss
from titanrl.registry import names, register
from titanrl.registry.decode import build

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.config.load import load
    from titanrl.eval.evaluate import EvalResult

__all__ = [
    "Advantages",
    "ConfigError",
    "CorrectionResult",
    "EvalResult",
    "Experiment",
    "PolicyOutputs",
    "Prompt",
    "SchemaError",
    "TokenLoss",
    "TrainingError",
    "build",
    "evaluate",
    "load",
    "names",
    "register",
    "train",
]
__version__ = "0.2.0.dev0"

_LAZY = {
    "EvalResult": "titanrl.eval.evaluate",
    "Experiment": "titanrl.config.experiment",
    "load": "titanrl.config.load",
}
"""Public names -> modules that are imported when the name is first used."""


def train(experiment: Experiment, *, resume: bool = False, accept: Sequence[str] = ()) -> Path:
    """Trains an experiment to its last step and returns its run folder.

    One process trains alone; under torchrun each process is a rank.

    Args:
        experiment: as ``load`` returns it; it is not changed.
        resume: continue from the newest complete checkpoint of the newest run of the same name.
        accept: keys whose changes since that run are accepted, although they change what it measures;
            "all" accepts every change that is possible.

    Raises:
        ConfigError: the experiment cannot run on this machine, with every reason; or the run cannot be
            resumed.
        TrainingError: no rows are left to train on, or an alert of [alerts] stop was raised.
    """
    from titanrl.training.run import train as train_checked

    _check(experiment)
    return train_checked(experiment, resume=resume, accept=accept)


def evaluate(
    experiment: Experiment, run: str | Path | None = None, step: str | int | None = None
) -> EvalResult:
    """Returns the held-out scores of a model with their 95% intervals.

    Args:
        experiment: with [evaluation.prompts], [sampler] and [[reward]]; [model] path is the model.
        run: run folder whose checkpoint replaces the weights of the model.
        step: of the checkpoint, or "best" by [checkpoint] keep_best; None: the newest whole one.

    Raises:
        ConfigError: the experiment cannot run on this machine, has no held-out prompts, or the run has no
            complete checkpoint.
    """
    from pathlib import Path

    from titanrl.eval.evaluate import evaluate_model

    _check(experiment)
    return evaluate_model(experiment, None if run is None else Path(run), step)


def _check(experiment: Experiment) -> None:
    from titanrl.preflight.verify import preflight

    if problems := preflight(experiment):
        raise ConfigError(problems)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
