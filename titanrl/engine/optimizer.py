"""TorchTitan's optimizers and learning-rate schedules, from our tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.models.common.decoder import Decoder

from titanrl.config.engine_tables import LRScheduler, Optimizer

__all__ = ["Schedule", "build_optimizers", "build_schedule"]


def build_optimizers(table: Optimizer, parts: list[Decoder]) -> OptimizersContainer:
    """Returns one optimizer per pipeline part, with all parameters in one group."""
    group = ParamGroupConfig(
        pattern=".*",
        optimizer_name=table.name,
        optimizer_kwargs={
            "lr": table.lr,
            "betas": (table.beta1, table.beta2),
            "eps": table.eps,
            "weight_decay": table.weight_decay,
        },
    )
    config = OptimizersContainer.Config(param_groups=[group], implementation=table.implementation)
    return OptimizersContainer(config, model_parts=parts)


PARAMETERS = ("params", "param_names")
"""Keys of an optimizer's group that are no options."""


class Schedule:
    """TorchTitan's learning-rate schedule, which keeps its last rate beyond its last step."""

    def __init__(self, schedulers: LRSchedulersContainer, total_steps: int) -> None:
        self.schedulers = schedulers
        self._total_steps = total_steps
        self._options = [
            [{k: v for k, v in group.items() if k not in PARAMETERS} for group in each.optimizer.param_groups]
            for each in schedulers.schedulers
        ]

    def step(self) -> None:
        if self.schedulers.schedulers[0].last_epoch < self._total_steps:
            with warnings.catch_warnings():
                # Raised where the first optimizer step is skipped, which the run reports itself.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.schedulers.step()

    def restore_options(self) -> None:
        """Gives the optimizers the options that they were built with, which a checkpoint has replaced.

        The learning rate is that of the present step of this schedule.
        """
        for scheduler, groups in zip(self.schedulers.schedulers, self._options, strict=True):
            rates = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            lrs = [base * factor(scheduler.last_epoch) for base, factor in rates]
            for group, options, lr in zip(scheduler.optimizer.param_groups, groups, lrs, strict=True):
                group.update(options, lr=lr)


def build_schedule(table: LRScheduler, optimizers: OptimizersContainer, steps: int) -> Schedule:
    """Returns the schedule over the table's total_steps, or over ``steps`` optimizer steps if it has none."""
    config = LRSchedulersContainer.Config(
        warmup_steps=table.warmup_steps,
        total_steps=table.total_steps,
        decay_ratio=table.decay_ratio,
        decay_type=table.decay_type,
        min_lr_factor=table.min_lr_factor,
    )
    schedulers, last = config.build(optimizers=optimizers, training_steps=steps), table.total_steps or steps
    for scheduler in schedulers.schedulers:
        # TorchTitan's lambdas fail beyond the last step, where a resume with a shorter schedule begins.
        scheduler.lr_lambdas = [_until(last, each) for each in scheduler.lr_lambdas]
    return Schedule(schedulers, last)


def _until(last: int, factor: Callable[[int], float]) -> Callable[[int], float]:
    """Returns a function of the step that keeps its value beyond the step ``last``."""
    return lambda step: factor(min(step, last))
