"""The policy's life on the mesh: scored, updated, streamed out, saved, restored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torchtitan.distributed.utils import clip_grad_norm_

from titanrl.config.engine_tables import (
    ActivationCheckpoint,
    Checkpoint,
    Compile,
    LRScheduler,
    Optimizer,
    Parallelism,
    Training,
)
from titanrl.engine import weights
from titanrl.engine.build import build_model
from titanrl.engine.checkpoint import Checkpoints
from titanrl.engine.head import compiled_kernels
from titanrl.engine.mesh import join
from titanrl.engine.optimizer import build_optimizers, build_schedule
from titanrl.engine.packing import MicroBatch
from titanrl.engine.reduce import reduce_sums
from titanrl.engine.role import Role
from titanrl.metrics import Sums
from titanrl.objective import Objective
from titanrl.ops.logprob import EAGER
from titanrl.protocols import PolicyOutputs, Stateful

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment

__all__ = ["Engine", "EngineConfig"]

# torch 2.13 can silently use a stale Python float in a compiled function (pytorch issue 194976): the second
# of two losses that differ in one float would compute the first one's. Needed until torch is fixed.
torch._dynamo.config.specialize_float = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that decides what the engine computes."""

    model: str
    """Hugging Face folder of the policy."""
    reference: str | None = None
    """Hugging Face folder of the frozen reference; None: the policy's."""
    reference_dtype: str = "float32"
    """Precision of the reference's weights in memory."""
    temperature: float = 1.0
    """Divides the logits of policy and reference, > 0: that at which the answers are sampled."""
    steps: int = 1
    """Optimizer steps of the run, for the learning-rate schedule."""
    training: Training = field(default_factory=Training)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lr_scheduler: LRScheduler = field(default_factory=LRScheduler)
    parallelism: Parallelism = field(default_factory=Parallelism)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    compile: Compile = field(default_factory=Compile)
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)

    @classmethod
    def of(cls, experiment: Experiment) -> EngineConfig:
        """Returns the engine's part of an experiment."""
        loop, reference = experiment.loop, experiment.reference
        frozen = (
            {} if reference is None else {"reference": reference.path, "reference_dtype": reference.dtype}
        )
        return cls(
            model=experiment.model.path,
            temperature=experiment.sampler.temperature,
            steps=loop.steps * loop.minibatches * loop.epochs,
            training=experiment.training,
            optimizer=experiment.optimizer,
            lr_scheduler=experiment.lr_scheduler,
            parallelism=experiment.parallelism,
            checkpoint=experiment.checkpoint,
            compile=experiment.compile,
            activation_checkpoint=experiment.activation_checkpoint,
            **frozen,
        )


class Engine:
    """A policy, its optimizer and its checkpoints.

    Every public method is a collective unless it says otherwise.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        state: Stateful | None = None,
        checkpoints: Path | None = None,
        with_reference: bool = False,
    ) -> None:
        """Joins the process group, builds and loads the models.

        Args:
            state: what else each rank's checkpoint holds. checkpoints: their folder; None: nothing is saved.
            with_reference: whether ``self.reference`` is wanted; it costs a second copy of the weights.

        Raises:
            ConfigError: a model, mesh or size that cannot be.
        """
        self._config = config
        self._mesh = join(config.parallelism)
        compiles = config.compile.enable and "loss" in config.compile.components
        self._kernels = compiled_kernels(config.compile.backend) if compiles else EAGER
        self._compiles = compiles
        self._policy = self._role(config.model, trainable=True)
        self.reference: Role | None = None
        """The frozen anchor, scored like the policy."""
        if with_reference:
            self.reference = self._role(config.reference or config.model, trainable=False)
        model = self._policy.model
        self._optimizers = build_optimizers(config.optimizer, model.parts)
        self._schedule = build_schedule(config.lr_scheduler, self._optimizers, config.steps)
        self._compiled: dict[Objective, Callable[..., Any]] = {}
        self._checkpoints = None
        if checkpoints is not None:
            self._checkpoints = Checkpoints(
                config.checkpoint,
                checkpoints,
                parts=model.parts,
                optimizers=self._optimizers,
                schedulers=self._schedule.schedulers,
                state=state,
            )

    def _role(self, folder: str, *, trainable: bool) -> Role:
        config = self._config
        model = build_model(
            folder,
            self._mesh,
            training=config.training,
            activation_checkpoint=config.activation_checkpoint,
            compile=config.compile,
            dtype=None if trainable else config.reference_dtype,
            trainable=trainable,
        )
        return Role(
            model,
            self._mesh,
            max_rows=config.training.microbatch_rows,
            temperature=config.temperature,
            kernels=self._kernels,
        )

    @property
    def device(self) -> torch.device:
        return self._mesh.device

    @property
    def rank(self) -> int:
        return self._mesh.rank

    @property
    def world_size(self) -> int:
        return self._mesh.world_size

    @property
    def dp_rank(self) -> int:
        """This rank's number among those with different rows."""
        return self._mesh.dp_rank

    @property
    def dp_degree(self) -> int:
        return self._mesh.dp_degree

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """Over which rows are exchanged; None where dp_degree is 1."""
        return self._mesh.dp_group

    @property
    def tensor_parallel_degree(self) -> int:
        return self._mesh.dims.tp

    @property
    def is_tied(self) -> bool:
        """Whether head and embedding are one parameter, which ``weights`` yields as the embedding."""
        return self._policy.model.tied

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The policy's TorchTitan Decoders on this rank, weights sharded: one, or the pipeline's stages."""
        return list(self._policy.model.parts)

    def score(self, rows: TensorDict, keys: tuple[str, ...] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns the policy's outputs before the update: see Role.score."""
        return self._policy.score(rows, keys)

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks.

        The gradient is that of the sum of ``objective`` over all rows of all ranks: how they are split
        changes nothing. A step whose gradient is zero or not finite is left out and counted in
        update/skipped.

        Args:
            rows: this rank's share, whole groups, with loss_weight; may be empty.
            coefficients: beta of the KL term and eta of the entropy bonus.
        """
        needs = getattr(objective.loss, "needs", ())
        if "value" in needs:
            raise ValueError("the loss needs a value head, which a policy does not have.")
        function = self._objective(objective)
        numbers = torch.tensor(coefficients, dtype=torch.float32, device=self.device)
        self._optimizers.zero_grad()
        sums: dict[int, dict[str, torch.Tensor]] = {}

        def use(outputs: PolicyOutputs, micro_batch: MicroBatch) -> torch.Tensor:
            loss, parts = function(outputs, micro_batch.batch, numbers)
            # By identity: a pipeline calls for some micro-batches twice.
            sums[id(micro_batch)] = {
                name: torch.stack(pair).detach().double() for name, pair in parts.items()
            }
            return loss

        micro_batches = self._policy.micro_batches(rows)
        self._policy.run(micro_batches, use)
        metrics = reduce_sums(list(sums.values()), self._mesh)
        if "loss/total" in metrics:
            # Normalised by its weights already: the step's number is the sum of the parts, not their mean.
            metrics["loss/total"] = (metrics["loss/total"][0], 1.0)
        tokens = sum(each.tokens.numel() for each in micro_batches if len(each.rows))
        return metrics | self._step() | {"update/computed_tokens": (float(tokens), 1.0)}

    def _step(self) -> Sums:
        """Clips, steps the optimizer, moves the schedule on.

        A gradient that is broken, or exactly zero, moves nothing: moments and weight decay would go on
        without a signal.
        """
        norm = clip_grad_norm_(
            self._policy.model.parameters(),
            self._config.training.max_norm,
            foreach=True,
            pp_mesh=self._mesh.dims.get_optional_mesh("pp"),
        )
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
        if not self._compiles:
            return objective
        if objective not in self._compiled:
            self._compiled[objective] = torch.compile(
                objective.__call__, fullgraph=True, dynamic=True, backend=self._config.compile.backend
            )
        return self._compiled[objective]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (Hugging Face name, full master weight) one after the other, on every rank.

        Consume it whole.
        """
        return weights.stream(self._policy.model, self._mesh.pp_group)

    @contextmanager
    def inference(self) -> Iterator[list[torch.nn.Module]]:
        """Lends the policy's modules with whole weights in compute precision, without gradients, for
        decoding.

        Call a whole part, ``parts[0](tokens, positions=..., attention_masks=None)`` -> logits [B, L, V], or
        its submodules one by one (``part.layers["0"]``, ``part.norm``, ``part.lm_head``) by their
        ``.forward``: that skips FSDP's hooks, which would only cost time here. No collective happens inside,
        so ranks may decode different numbers of tokens. Weights are plain tensors and not to be kept beyond
        the block.
        """
        modules = self._policy.model.fsdp_modules()
        frees = [any(group.post_forward_mesh_info for group in _groups(module)) for module in modules]
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            with torch.no_grad():
                yield self.modules
        finally:
            for module, free in zip(modules, frees, strict=True):
                module.set_reshard_after_forward(free, recurse=False)
            self._policy.reshard()

    def export(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Writes the policy as a Hugging Face folder."""
        weights.export(self._policy.model, self._mesh.pp_group, folder, dtype=dtype)

    def save(self, step: int, *, last: bool = False) -> bool:
        """Writes a checkpoint if one is due after ``step`` finished steps, always if ``last``.

        Returns whether.
        """
        return self._checkpoints is not None and self._checkpoints.save(step, last=last)

    def load(self, step: int = -1) -> bool:
        """Restores everything from the newest whole checkpoint, or that of ``step``.

        Returns whether there was one.
        """
        return self._checkpoints is not None and self._checkpoints.load(step)

    def close(self) -> None:
        """Finishes writing; the process group stays, others may use it."""
        if self._checkpoints is not None:
            self._checkpoints.close()


def _groups(module: Any) -> list[Any]:
    return list(module._get_fsdp_state()._fsdp_param_groups)
