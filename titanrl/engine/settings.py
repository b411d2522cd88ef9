"""What an engine is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

__all__ = ["EngineConfig"]


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
            reference=None if reference is None else reference.path,
            reference_dtype="float32" if reference is None else reference.dtype,
        )
