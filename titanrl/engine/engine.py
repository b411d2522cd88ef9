"""The training engine: forward passes, optimizer steps, weight export and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from tensordict import TensorDict

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import LRScheduler, Optimizer
from titanrl.engine.build import build_model, head_precision
from titanrl.engine.checkpoint import Checkpoints
from titanrl.engine.collectives import gather_objects
from titanrl.engine.heads.token import compiled_kernels
from titanrl.engine.lazy_reference import LazyReference
from titanrl.engine.learner import Learner
from titanrl.engine.mesh import build_mesh
from titanrl.engine.scoring_model import ScoringModel, unsharded_parameters
from titanrl.engine.settings import EngineConfig, FrozenModel
from titanrl.engine.weights import hf_folder
from titanrl.engine.weights.full_parameters import full_parameters
from titanrl.engine.weights.stream import iter_state_dict
from titanrl.ops.row_kernels import EAGER
from titanrl.protocols import Stateful

__all__ = ["Engine", "EngineConfig"]


class Engine:
    """The trained policy, an optional trained critic, the frozen models, and their checkpoints.

    Every public method is a collective unless it says otherwise.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        state: Stateful | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        """Initializes the process group, builds and loads the models.

        Args:
            config: what the engine computes.
            state: further state of each rank that a checkpoint holds.
            checkpoints: folder of the checkpoints; None: nothing is saved.

        Raises:
            ConfigError: a model, mesh or size that is not possible.
        """
        self._config = config
        self._mesh = build_mesh(config.parallelism)
        compiles = config.compile.enable and "loss" in config.compile.components
        self._kernels = compiled_kernels(config.compile.backend) if compiles else EAGER
        self._backend = config.compile.backend if compiles else None
        self.temperature = config.temperature
        """Divides the logits of all models in every later pass; a sampler may change it between steps."""
        scoring_model = self._scoring_model(config.model, head=config.policy_head, heads=config.heads)
        self.policy = self._learner(scoring_model, config.optimizer, config.lr_scheduler, config.steps)
        critic = config.critic
        self.critic: Learner | None = None
        """The value model that is trained with the policy; None: there is none, or it is a head of it."""
        if critic is not None and critic.path is not None:
            scoring_model = self._scoring_model(critic.path, head="value")
            self.critic = self._learner(scoring_model, critic.optimizer, critic.lr_scheduler, critic.steps)
        self.frozen: dict[str, ScoringModel | LazyReference] = {
            name: self._frozen(each) for name, each in config.frozen.items()
        }
        """Models that only score, by role: the reference, the teacher."""
        self._checkpoints = None
        if checkpoints is not None:
            self._checkpoints = Checkpoints(
                config.checkpoint, checkpoints, self.policy, self.critic, state, self._mesh.degrees
            )

    def _learner(
        self, scoring_model: ScoringModel, optimizer: Optimizer, lr_scheduler: LRScheduler, steps: int
    ) -> Learner:
        return Learner(
            scoring_model,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            steps=steps,
            max_norm=self._config.training.max_norm,
            backend=self._backend,
        )

    def _frozen(self, model: FrozenModel) -> ScoringModel | LazyReference:
        """Returns a frozen model; one with the policy's initial weights is loaded at the first update."""
        training = self._config.training
        load = partial(
            self._scoring_model,
            model.path,
            frozen_dtype=model.dtype,
            top_k=model.top_k,
            offload=model.offload and self.device.type != "cpu",
        )
        is_same = model.path == self._config.model and self._config.head == "language" and not model.top_k
        # Weights are rounded to the compute precision anyway.
        if is_same and model.dtype in (training.dtype, training.mixed_precision_param):
            return LazyReference(self.policy, load)
        return load()

    def _scoring_model(
        self,
        folder: str,
        *,
        head: Literal["language", "value", "shared"] = "language",
        heads: Mapping[str, float] | None = None,
        frozen_dtype: str | None = None,
        top_k: int = 0,
        offload: bool = False,
    ) -> ScoringModel:
        """Returns the model of ``folder``: trainable, or in ``frozen_dtype`` without gradients."""
        config = self._config
        model = build_model(
            folder,
            self._mesh,
            training=config.training,
            activation_checkpoint=config.activation_checkpoint,
            compile=config.compile,
            head=head,
            heads=heads,
            head_dtype=config.head_dtype,
            dtype=frozen_dtype,
            trainable=frozen_dtype is None,
            offload=offload,
        )
        return ScoringModel(
            model,
            self._mesh,
            max_tokens=config.training.max_tokens_per_microbatch,
            temperature=lambda: self.temperature,
            kernels=self._kernels,
            top_k=top_k,
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
        """Index of this rank among the ranks with different rows."""
        return self._mesh.dp_rank

    @property
    def dp_degree(self) -> int:
        return self._mesh.dp_degree

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """The ranks with different rows; None where dp_degree is 1."""
        return self._mesh.dp_group

    @property
    def row_groups(self) -> list[dist.ProcessGroup]:
        """One group per mesh axis of the ranks with the same rows; empty if every rank has its own."""
        return self._mesh.row_groups

    @property
    def tensor_parallel_degree(self) -> int:
        return int(self._mesh.dims.tp)

    @property
    def is_tied(self) -> bool:
        """Whether head and embedding are one parameter, which ``weights`` yields as the embedding alone."""
        return self.policy.scoring_model.model.tied

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The policy's TorchTitan Decoders on this rank, weights sharded: one, or the pipeline's stages."""
        return list(self.policy.scoring_model.model.parts)

    def is_policy(self, name: str) -> bool:
        """Whether the frozen model of that role shares the policy's weights because no update was made."""
        model = self.frozen[name]
        return isinstance(model, LazyReference) and model.is_policy

    def score(self, rows: TensorDict, keys: tuple[str, ...] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns the policy's outputs at its current weights: see ScoringModel.score."""
        return self.policy.score(rows, keys)

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Makes one optimizer step and returns the metrics' (sum, count) over all ranks: see Updater."""
        return self.policy.update(rows, objective, coefficients)

    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        """Returns the metrics' (sum, count) over all ranks without an update: see Updater."""
        return self.policy.measure(rows, objective, coefficients)

    def nonfinite_weights(self) -> list[str]:
        """Returns the names of trained weights that hold NaN or infinite values on any rank."""
        names = self.policy.nonfinite_weights()
        if self.critic is not None:
            names += [f"critic.{name}" for name in self.critic.nonfinite_weights()]
        return list(dict.fromkeys(gather_objects(names, None, self.world_size)))

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (Hugging Face name, full master weight), one tensor at a time, on every rank.

        Exhaust the iterator: it runs collectives.

        Args:
            dtype: precision in which shards are sent between ranks; None: that of the master weights.
        """
        return iter_state_dict(self.policy.scoring_model.model, self._mesh.pp_group, dtype)

    @contextmanager
    def inference(self) -> Iterator[list[torch.nn.Module]]:
        """Yields the policy's modules with full parameters in compute precision, without gradients.

        A collective, for decoding. Under tensor, pipeline or expert parallelism the modules are a copy.

        Call a part, ``parts[0](tokens, positions=..., attention_masks=None)`` -> logits [B, L, V], or
        its submodules one by one (``part.layers["0"]``, ``part.norm``, ``part.lm_head``) by their
        ``.forward``, which skips FSDP's hooks and their cost. No collective runs inside the block, so ranks
        may decode different numbers of tokens. Weights are plain tensors and are not valid after the block.
        """
        scoring_model, dims = self.policy.scoring_model, self._mesh.dims
        if not (dims.tp_enabled or dims.pp_enabled or dims.ep_enabled):
            with unsharded_parameters(scoring_model), scoring_model.model.head.decoding():
                yield self.modules
            return
        training = self._config.training
        with (
            full_parameters(
                scoring_model.model,
                self._mesh,
                max_length=training.seq_len,
                dtype=training.mixed_precision_param,
                head_dtype=head_precision(self._config.head_dtype),
            ) as decoder,
            decoder.lm_head.decoding(),
        ):
            yield [decoder]

    def export(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Writes the policy as a Hugging Face folder: see weights.hf_folder.export."""
        hf_folder.export(self.policy.scoring_model.model, self._mesh.pp_group, folder, dtype=dtype)

    def save(
        self,
        step: int,
        *,
        last: bool = False,
        metrics: Mapping[str, float] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Writes a checkpoint if one is due: see Checkpoints.

        Args:
            step: number of finished steps.
            last: whether to write one in any case.
            metrics: of the step, of which [checkpoint] keep_best may name one.
            before: called before a checkpoint is written; it may refuse by raising.

        Returns:
            Whether a checkpoint was written.
        """
        return self._checkpoints is not None and self._checkpoints.save(
            step, last=last, metrics=metrics, before=before
        )

    def require_metric(self, metrics: Mapping[str, float]) -> None:
        """Refuses a validation that does not measure [checkpoint] keep_best; not a collective."""
        if self._checkpoints is not None:
            self._checkpoints.require_metric(metrics)

    def load(self, step: int | str | None = None) -> bool:
        """Restores models, optimizers, schedules and state; the optimizers keep the options of their tables.

        The checkpoint may be of another mesh.

        Args:
            step: of the checkpoint, or "best"; None: the newest whole one.

        Returns:
            Whether there was a complete checkpoint.

        Raises:
            ConfigError: the checkpoint is damaged or of another model.
        """
        is_loaded = self._checkpoints is not None and self._checkpoints.load(step)
        self.policy.is_updated |= is_loaded
        for learner in filter(None, (self.policy, self.critic) if is_loaded else ()):
            learner.schedule.restore_options()
        return is_loaded

    def close(self) -> None:
        """Finishes writing checkpoints; the process group stays initialized."""
        if self._checkpoints is not None:
            self._checkpoints.close()
