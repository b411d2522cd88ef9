"""A role that learns: its optimizers, learning-rate schedule and updates."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import LRScheduler, Optimizer
from titanrl.engine.optimizer import build_optimizers, build_schedule
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.update import Updater

__all__ = ["Learner"]


class Learner:
    """A model whose weights move, and what moves them."""

    def __init__(
        self,
        role: ScoringModel,
        *,
        optimizer: Optimizer,
        lr_scheduler: LRScheduler,
        steps: int,
        max_norm: float,
        backend: str | None,
    ) -> None:
        """Args:
        steps: optimizer steps of the run, for the learning-rate schedule.
        max_norm, backend: see Updater.
        """
        self.role = role
        self.optimizers = build_optimizers(optimizer, role.model.parts)
        self.schedule = build_schedule(lr_scheduler, self.optimizers, steps)
        self._updater = Updater(role, self.optimizers, self.schedule, max_norm=max_norm, backend=backend)
        self.is_updated = False
        """Whether the weights are others than those of the model's folder."""

    def score(self, rows: TensorDict, keys: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Returns the model's outputs before the update: see Role.score."""
        return self.role.score(rows, keys)

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks: see Updater."""
        metrics = self._updater.update(rows, objective, coefficients)
        self.is_updated |= not metrics["update/skipped"][0]
        return metrics

    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Returns the metrics of an update that is not made: see Updater."""
        return self._updater.measure(rows, objective, coefficients)
