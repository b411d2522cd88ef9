"""One optimizer step: gradients of the objective summed over micro-batches and ranks, then clipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from tensordict import TensorDict
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.distributed.utils import clip_grad_norm_

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective, compiled
from titanrl.engine.host_memory import MallocTrimmer
from titanrl.engine.optimizer import Schedule
from titanrl.engine.packing import MicroBatch
from titanrl.engine.reduce import reduce_sums
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.weights.tying import share_gradient
from titanrl.errors import ConfigError
from titanrl.protocols import PolicyOutputs
from titanrl.registry import declared

__all__ = ["Updater"]

# See titanrl.algorithm.objective.compiled; the head's kernels need it too and are compiled earlier.
torch._dynamo.config.specialize_float = True


class Updater:
    """Computes the gradients of an objective and steps the optimizers."""

    def __init__(
        self,
        scoring_model: ScoringModel,
        optimizers: OptimizersContainer,
        schedule: Schedule,
        *,
        max_norm: float,
        backend: str | None,
    ) -> None:
        """Keeps the model and its optimizers.

        Args:
            scoring_model: the trained model.
            optimizers: of its parameters.
            schedule: of the learning rate.
            max_norm: bound of the gradient's norm; inf: no clipping.
            backend: torch.compile's backend for objectives; None: they run eagerly.
        """
        self._scoring_model, self._optimizers, self._schedule = scoring_model, optimizers, schedule
        self._max_norm, self._backend = max_norm, backend
        self._compiled: dict[Objective, Callable[..., Any]] = {}
        self._malloc_trimmer = MallocTrimmer()

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks.

        The gradient is that of the sum of ``objective`` over all rows of all ranks, however they are split.
        A step whose gradient is zero or not finite is skipped and counted in update/skipped; the latter also
        in update/nonfinite_gradients.

        Args:
            rows: this rank's rows in complete groups, with loss_weight; may be empty.
            objective: what is minimized.
            coefficients: beta of the KL term and eta of the entropy bonus.
        """
        self._optimizers.zero_grad()
        if self._scoring_model.mesh.device.type == "cpu":
            self._malloc_trimmer.return_growth()
        sums = self._sums(rows, objective, coefficients)
        is_finite = math.isfinite(sums["loss/total"][0])
        return sums | {"loss/nonfinite": (float(not is_finite), 1.0)} | self._step()

    @torch.no_grad()
    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Returns the metrics that ``update`` would return, without an update: for held-out rows."""
        sums = self._sums(rows, objective, coefficients)
        self._scoring_model.reshard()
        return sums

    def _sums(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Computes the objective over all micro-batches; back-propagates each where gradients are enabled."""
        reads_value = "value" in declared(objective.loss, "needs")
        if reads_value != self._scoring_model.model.is_value_model:
            computes = "only values" if self._scoring_model.model.is_value_model else "no values"
            raise ValueError(
                f"{type(objective.loss).__name__} cannot train a model that computes {computes}."
            )
        function = self._objective(objective)
        coefficient = torch.tensor(coefficients, dtype=torch.float32, device=self._scoring_model.mesh.device)
        sums: dict[int, dict[str, torch.Tensor]] = {}
        trains = torch.is_grad_enabled()

        def use(outputs: PolicyOutputs, micro_batch: MicroBatch) -> torch.Tensor | None:
            loss: torch.Tensor
            loss, parts = function(outputs, micro_batch.batch, coefficient)
            # By identity: a pipeline computes some micro-batches twice.
            micro_sums = {name: torch.stack(pair).detach().double() for name, pair in parts.items()}
            micro_sums["update/computed_tokens"] = torch.tensor(
                [micro_batch.num_tokens, 1.0], dtype=torch.float64, device=loss.device
            )
            sums[id(micro_batch)] = micro_sums
            return loss if trains else None

        micro_batches = self._scoring_model.micro_batches(rows, split_groups=not objective.couples_group)
        if declared(objective.loss, "couples_step"):
            self._refuse_several_micro_batches(sum(bool(len(each.rows)) for each in micro_batches))
        self._scoring_model.run(micro_batches, use)
        metrics = reduce_sums(list(sums.values()), self._scoring_model.mesh)
        # Losses are normalized by their weights already and tokens are counted: the step's value is the sum
        # over micro-batches, not their mean.
        summed = {"loss/total", "critic/loss", "update/computed_tokens"} & metrics.keys()
        return metrics | {name: (metrics[name][0], 1.0) for name in summed}

    def _refuse_several_micro_batches(self, count: int) -> None:
        """Refuses to split the rows of a step for a loss that compares all of them."""
        ranks = self._scoring_model.mesh.dp_degree
        if count > 1 or ranks > 1:
            raise ConfigError(
                "[algorithm.loss] compares all pairs of an optimizer step, which must be one micro-batch on "
                f"one data-parallel rank, got {count} on {ranks}; raise [training] "
                "max_tokens_per_microbatch, or lower [loop] prompts_per_step."
            )

    def _step(self) -> Sums:
        """Clips the gradient, steps the optimizers and the schedule.

        A gradient that is not finite, or exactly zero, skips the optimizers: moments and weight decay would
        act without a signal.
        """
        model, mesh = self._scoring_model.model, self._scoring_model.mesh
        copy = share_gradient(model, mesh.pp_group)
        norm = clip_grad_norm_(
            [parameter for parameter in model.parameters() if parameter is not copy],
            self._max_norm,
            foreach=True,
            pp_mesh=mesh.dims.get_optional_mesh("pp"),
            ep_enabled=mesh.dims.ep_enabled,
        )
        if copy is not None:
            torch.nn.utils.clip_grads_with_norm_([copy], self._max_norm, norm)
        value = float(norm)
        is_finite = math.isfinite(value)
        rate = float(self._optimizers.optimizers[0].param_groups[0]["lr"])
        has_signal = is_finite and value > 0
        if has_signal:
            self._optimizers.step()
        self._schedule.step()
        self._optimizers.zero_grad()
        return {
            "update/grad_norm": (value, 1.0) if is_finite else (0.0, 0.0),
            "update/lr": (rate, 1.0),
            "update/skipped": (float(not has_signal), 1.0),
            "update/nonfinite_gradients": (float(not is_finite), 1.0),
        }

    def _objective(self, objective: Objective) -> Callable[..., Any]:
        if self._backend is None:
            return objective
        if objective not in self._compiled:
            self._compiled[objective] = compiled(objective, self._backend)
        return self._compiled[objective]
