"""Settings of the engine: models, training tables, parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from titanrl.config.engine_tables import (
    ActivationCheckpoint,
    Checkpoint,
    Compile,
    LRScheduler,
    Optimizer,
    Parallelism,
    Training,
)

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment

__all__ = ["CriticModel", "EngineConfig", "FrozenModel"]


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model that scores and is never trained."""

    path: str
    """Hugging Face folder."""
    dtype: str = "float32"
    """Precision of its weights in memory."""
    top_k: int = 0
    """Number of top-k tokens that it scores at each loss token; a policy's head only."""
    offload: bool = False
    """Whether its weights stay in CPU memory between forward passes; no effect on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticModel:
    """A value model that is trained with the policy, or a second head of the policy."""

    path: str | None
    """Hugging Face folder of a value model, or of a language model that gets a new head; None: the critic is
    a second head on the policy's backbone, and the policy's optimizer trains it."""
    steps: int = 1
    """Its optimizer steps in the run, for the learning-rate schedule."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    lr_scheduler: LRScheduler = field(default_factory=LRScheduler)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides what the engine computes."""

    model: str
    """Hugging Face folder of the policy."""
    head: Literal["language", "value"] = "language"
    """The policy's head: "value" trains a value model."""
    heads: Mapping[str, float] = field(default_factory=dict)
    """Names and weights of scalar heads; empty: one head."""
    head_dtype: Literal["float32"] | None = None
    """Precision of the products and log-probs of all vocabulary heads; None: the compute precision."""
    critic: CriticModel | None = None
    """None: no critic."""
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)
    """Frozen models by role; each holds a copy of its weights."""
    temperature: float = 1.0
    """Divides the logits of policy and frozen models, > 0: the sampling temperature; 1 for offline data."""
    steps: int = 1
    """Optimizer steps of the policy in the run, for the learning-rate schedule."""
    training: Training = field(default_factory=Training)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lr_scheduler: LRScheduler = field(default_factory=LRScheduler)
    parallelism: Parallelism = field(default_factory=Parallelism)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    compile: Compile = field(default_factory=Compile)
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)

    @property
    def policy_head(self) -> Literal["language", "value", "shared"]:
        """The head that the policy is built with: "shared" includes the critic's."""
        return "shared" if self.critic is not None and self.critic.path is None else self.head

    @classmethod
    def of(cls, experiment: Experiment) -> EngineConfig:
        """Returns the engine's settings of an experiment."""
        loop, critic = experiment.loop, experiment.critic
        reference, teacher = experiment.reference, experiment.teacher
        updates, warmup = loop.minibatches * loop.epochs, 0 if critic is None else critic.warmup_steps
        frozen = {}
        if reference is not None:
            frozen["reference"] = FrozenModel(
                reference.path or experiment.model.path, reference.dtype, offload=reference.offload
            )
        if teacher is not None:
            frozen["teacher"] = FrozenModel(
                teacher.path, teacher.dtype, teacher.top_k or 0, offload=teacher.offload
            )
        return cls(
            model=experiment.model.path,
            head=experiment.model.head,
            heads=experiment.model.heads,
            head_dtype=experiment.model.head_dtype,
            temperature=experiment.sampler.temperature if experiment.sampler and not experiment.data else 1.0,
            steps=(loop.steps - warmup) * updates,
            training=experiment.training,
            optimizer=experiment.optimizer,
            lr_scheduler=experiment.lr_scheduler,
            parallelism=experiment.parallelism,
            checkpoint=experiment.checkpoint,
            compile=experiment.compile,
            activation_checkpoint=experiment.activation_checkpoint,
            critic=None
            if critic is None
            else CriticModel(path=None)
            if critic.shared
            else CriticModel(
                path=critic.path or experiment.model.path,
                steps=loop.steps * updates,
                optimizer=critic.optimizer,
                lr_scheduler=critic.lr_scheduler,
            ),
            frozen=frozen,
        )
