"""The live objects and tables that sampling and scoring need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from titanrl.protocols import SamplerContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from titanrl.config.engine_tables import ActivationCheckpoint, Compile, Parallelism, Training
    from titanrl.config.environment import EnvironmentTable
    from titanrl.config.tables import Model, Reward, Run
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.engine import Engine
    from titanrl.protocols import Sampler, SamplerSettings
    from titanrl.rollout.environments.runner import EnvironmentRunner

__all__ = ["GeneratorTables", "RolloutContext", "start_sampler"]


class RolloutContext(Protocol):
    """A training session, or a policy that is only sampled from."""

    @property
    def engine(self) -> Engine: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def sampler_settings(self) -> SamplerSettings: ...
    @property
    def environment(self) -> EnvironmentRunner | None: ...
    @property
    def tokenizer(self) -> ChatTokenizer: ...
    @property
    def rewards(self) -> Sequence[Reward]: ...
    @property
    def seed(self) -> int: ...


class GeneratorTables(Protocol):
    """The tables of an experiment that a generator is loaded from."""

    @property
    def run(self) -> Run: ...
    @property
    def model(self) -> Model: ...
    @property
    def sampler(self) -> SamplerSettings | None: ...
    @property
    def environment(self) -> EnvironmentTable | None: ...
    @property
    def reward(self) -> tuple[Reward, ...]: ...
    @property
    def training(self) -> Training: ...
    @property
    def parallelism(self) -> Parallelism: ...
    @property
    def compile(self) -> Compile: ...
    @property
    def activation_checkpoint(self) -> ActivationCheckpoint: ...


def start_sampler(
    settings: SamplerSettings,
    engine: Engine,
    tokenizer: ChatTokenizer,
    *,
    training: Training,
    model_path: str,
    seed: int,
    head_dtype: str | None = None,
    num_rows: int | None = None,
) -> Sampler:
    """Returns the live sampler of a [sampler] table, in this rank's process.

    Args:
        settings: the [sampler] table.
        engine: the trainer's engine on this rank.
        tokenizer: the model's tokenizer.
        training: the [training] table, for the longest row and the compute dtype.
        model_path: Hugging Face folder of the initial weights.
        seed: the run's seed.
        head_dtype: precision of the trainer's vocabulary head; None: the compute precision.
        num_rows: completions requested at a time, on all ranks together; None: unknown.
    """
    return settings.start(
        SamplerContext(
            model_path=model_path,
            eos_ids=tokenizer.eos_ids,
            max_length=training.seq_len,
            seed=seed,
            device=engine.device.type,
            dtype=training.mixed_precision_param,
            head_dtype=head_dtype,
            num_rows=num_rows,
            dp_rank=engine.dp_rank,
            dp_degree=engine.dp_degree,
            engine=engine,
            tokenizer=tokenizer.tokenizer,
        )
    )
