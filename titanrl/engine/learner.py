"""A trained model: its optimizers, learning-rate schedule and updates."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import LRScheduler, Optimizer
from titanrl.engine.optimizer import build_optimizers, build_schedule
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.update import Updater

__all__ = ["Learner"]


class Learner:
    """A scoring model with the optimizers that train it."""

    def __init__(
        self,
        scoring_model: ScoringModel,
        *,
        optimizer: Optimizer,
        lr_scheduler: LRScheduler,
        steps: int,
        max_norm: float,
        backend: str | None,
    ) -> None:
        """Builds the optimizers, the schedule and the updater.

        Args:
            scoring_model: the model to train.
            optimizer: its table.
            lr_scheduler: its table.
            steps: optimizer steps of the run, for the learning-rate schedule.
            max_norm: see Updater.
            backend: see Updater.
        """
        self.scoring_model = scoring_model
        self.optimizers = build_optimizers(optimizer, scoring_model.model.parts)
        self.schedule = build_schedule(lr_scheduler, self.optimizers, steps)
        self._updater = Updater(
            scoring_model, self.optimizers, self.schedule, max_norm=max_norm, backend=backend
        )
        self.is_updated = False
        """Whether the weights differ from those of the model's folder."""

    def score(self, rows: TensorDict, keys: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Returns the model's outputs at its current weights: see ScoringModel.score."""
        return self.scoring_model.score(rows, keys)

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks: see Updater."""
        metrics = self._updater.update(rows, objective, coefficients)
        self.is_updated |= not metrics["update/skipped"][0]
        return metrics

    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Returns the metrics without an update: see Updater."""
        return self._updater.measure(rows, objective, coefficients)

    @torch.no_grad()
    def nonfinite_weights(self) -> list[str]:
        """Returns the names of this rank's weights that hold NaN or infinite values; no collective."""
        names = []
        for part in self.scoring_model.model.parts:
            for name, weight in part.named_parameters():
                local = weight.to_local() if isinstance(weight, DTensor) else weight
                # Both ends of the range are NaN if any value is; needs no memory.
                if local.numel() and not torch.stack(torch.aminmax(local)).isfinite().all():
                    names.append(name)
        return names
