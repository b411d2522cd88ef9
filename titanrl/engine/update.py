"""One optimizer step: gradients of the objective summed over micro-batches and ranks, clipped, applied."""

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

# Why, says titanrl.algorithm.objective.compiled; the head's kernels need it as well, and are compiled before.
torch._dynamo.config.specialize_float = True


class Updater:
    """Moves a role's weights."""

    def __init__(
        self,
        role: ScoringModel,
        optimizers: OptimizersContainer,
        schedule: Schedule,
        *,
        max_norm: float,
        backend: str | None,
    ) -> None:
        """Args:
        max_norm: bound of the gradient's norm; inf: none. backend: torch.compile's; None: objectives run as
            they are.
        """
        self._role, self._optimizers, self._schedule = role, optimizers, schedule
        self._max_norm, self._backend = max_norm, backend
        self._compiled: dict[Objective, Callable[..., Any]] = {}
        self._freed = MallocTrimmer()

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks.

        The gradient is that of the sum of ``objective`` over all rows of all ranks: how they are split
        changes nothing. A step whose gradient is zero or not finite is left out and counted in
        update/skipped.

        Args:
            rows: this rank's share, whole groups, with loss_weight; may be empty.
            coefficients: beta of the KL term and eta of the entropy bonus.
        """
        self._optimizers.zero_grad()
        if self._role.mesh.device.type == "cpu":
            self._freed.return_growth()
        return self._sums(rows, objective, coefficients) | self._step()

    @torch.no_grad()
    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Returns the metrics that ``update`` would without moving anything: for held-out rows."""
        sums = self._sums(rows, objective, coefficients)
        self._role.reshard()
        return sums

    def _sums(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Computes the objective over all micro-batches; back-propagates each where gradients are enabled."""
        reads_value = "value" in declared(objective.loss, "needs")
        if reads_value != self._role.model.is_value_model:
            has = "values alone" if self._role.model.is_value_model else "no values"
            raise ValueError(f"{type(objective.loss).__name__} cannot train a model that computes {has}.")
        function = self._objective(objective)
        numbers = torch.tensor(coefficients, dtype=torch.float32, device=self._role.mesh.device)
        sums: dict[int, dict[str, torch.Tensor]] = {}
        trains = torch.is_grad_enabled()

        def use(outputs: PolicyOutputs, micro_batch: MicroBatch) -> torch.Tensor | None:
            loss: torch.Tensor
            loss, parts = function(outputs, micro_batch.batch, numbers)
            # By identity: a pipeline calls for some micro-batches twice.
            found = {name: torch.stack(pair).detach().double() for name, pair in parts.items()}
            found["update/computed_tokens"] = torch.tensor(
                [micro_batch.num_tokens, 1.0], dtype=torch.float64, device=loss.device
            )
            sums[id(micro_batch)] = found
            return loss if trains else None

        micro_batches = self._role.micro_batches(rows, whole_groups=objective.couples_group)
        if declared(objective.loss, "couples_step"):
            self._refuse_parts(sum(bool(len(each.rows)) for each in micro_batches))
        self._role.run(micro_batches, use)
        metrics = reduce_sums(list(sums.values()), self._role.mesh)
        # Normalised by its weights already, and a plain count: the step's number is the sum of the parts, not
        # their mean.
        summed = {"loss/total", "critic/loss", "update/computed_tokens"} & metrics.keys()
        return metrics | {name: (metrics[name][0], 1.0) for name in summed}

    def _refuse_parts(self, count: int) -> None:
        """Raises where a loss that compares all rows of a step would see only some of them at once."""
        ranks = self._role.mesh.dp_degree
        if count > 1 or ranks > 1:
            raise ConfigError(
                "[algorithm.loss] compares all pairs of an optimizer step, which must be one micro-batch on "
                f"one data-parallel rank, got {count} on {ranks}; raise [training] "
                "max_tokens_per_microbatch, or lower [loop] prompts_per_step."
            )

    def _step(self) -> Sums:
        """Clips, steps the optimizer, moves the schedule on.

        A gradient that is broken, or exactly zero, moves nothing: moments and weight decay would go on
        without a signal.
        """
        model, mesh = self._role.model, self._role.mesh
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
        moves = is_finite and value > 0
        if moves:
            self._optimizers.step()
        self._schedule.step()
        self._optimizers.zero_grad()
        return {
            "update/grad_norm": (value, 1.0) if is_finite else (0.0, 0.0),
            "update/lr": (rate, 1.0),
            "update/skipped": (float(not moves), 1.0),
        }

    def _objective(self, objective: Objective) -> Callable[..., Any]:
        if self._backend is None:
            return objective
        if objective not in self._compiled:
            self._compiled[objective] = compiled(objective, self._backend)
        return self._compiled[objective]
