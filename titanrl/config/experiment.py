"""The experiment: all tables of its file, decoded and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, cast

from titanrl.algorithm.dataflow import Node, dataflow_nodes, scored_keys
from titanrl.algorithm.table import Algorithm
from titanrl.config.alerts import Alerts
from titanrl.config.checks import cross_problems
from titanrl.config.engine_tables import (
    ActivationCheckpoint,
    Checkpoint,
    Compile,
    LRScheduler,
    Optimizer,
    Parallelism,
    Training,
)
from titanrl.config.environment import EnvironmentTable
from titanrl.config.report_tables import Profile, Report
from titanrl.config.rft import RFT
from titanrl.config.tables import Critic, Evaluation, Loop, Model, Reference, Reward, Run, Teacher
from titanrl.errors import ConfigError, Problem, closest_matches
from titanrl.protocols import DataSettings, SamplerSettings, SourceSettings
from titanrl.registry.decode import Component, Flattened, decode_fields, fields_of
from titanrl.registry.values import unknown_keys

__all__ = ["Experiment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment file; tables are attributes, keys are theirs.

    Raises:
        ConfigError: tables that do not fit together.
    """

    imports: tuple[str, ...] = ()
    """Modules or .py files (relative to the file) that register components of your own."""
    run: Run = field(default_factory=Run)
    """Where the run leaves its files, and its seed."""
    model: Model
    """The model that is trained."""
    prompts: Annotated[SourceSettings, Component("source")] | None = None
    """Source of the training prompts, online; either this or data."""
    data: Annotated[DataSettings, Component("source")] | None = None
    """Source of existing examples, offline; either this or prompts."""
    sampler: Annotated[SamplerSettings, Component("sampler")] | None = None
    """Sampler of responses, for prompts and evaluation.prompts."""
    environment: Annotated[EnvironmentTable, Flattened("environment")] | None = None
    """Environment in which prompts are answered over several turns. Default: one response to each prompt."""
    reward: tuple[Annotated[Reward, Flattened("reward")], ...] = ()
    """Reward of a sampled response: a weighted sum of reward functions."""
    algorithm: Algorithm
    """Components that turn rewards into an update."""
    reference: Reference | None = None
    """The frozen reference policy; present if, and only if, a component reads ref_logprob."""
    teacher: Teacher | None = None
    """The frozen teacher of distillation; present if, and only if, a component reads its outputs."""
    critic: Critic | None = None
    """The value model; present if, and only if, a component reads value."""
    loop: Loop
    """Number and size of the training steps."""
    evaluation: Evaluation | None = None
    """Evaluation on held-out prompts or data. Default: none."""
    rft: RFT | None = None
    """Rejection sampling with `titanrl rft`; other commands ignore it."""
    training: Training = field(default_factory=Training)
    """Sizes and precision of the update."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """Optimizer of the policy."""
    lr_scheduler: LRScheduler = field(default_factory=LRScheduler)
    """Schedule of the learning rate."""
    parallelism: Parallelism = field(default_factory=Parallelism)
    """Degrees of parallelism."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """When checkpoints are written, and how many are kept."""
    compile: Compile = field(default_factory=Compile)
    """Parts to compile."""
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)
    """Activations to recompute, to save memory."""
    report: Report = field(default_factory=Report)
    """Display and logs."""
    profile: Profile | None = None
    """Steps to profile. Default: none."""
    alerts: Alerts = field(default_factory=Alerts)
    """Limits beyond which an online run reports an alert."""

    def __post_init__(self) -> None:
        if problems := cross_problems({each.name: getattr(self, each.name) for each in fields(self)}):
            raise ConfigError(problems)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], directives: tuple[str, ...] = ()) -> Experiment:
        """Returns the experiment that a resolved file describes.

        Args:
            table: plain TOML values.
            directives: top-level keys of files that are no tables, for suggestions.

        Raises:
            ConfigError: with every mistake of every table, and of those tables together that could be read.
        """
        known = fields_of(cast(Any, cls))
        problems = unknown_keys(table, [*directives, *known])
        wrong = [key for key in table if key not in known and key not in directives]
        suggested = {name for key in wrong for name in closest_matches(key, known)}
        values: dict[str, Any] = {}
        for name, (each, hint) in known.items():
            if name in table:
                try:
                    values |= decode_fields({name: (hint, table[name])})
                except ConfigError as error:
                    problems += error.problems
            elif each.default is not MISSING:
                values[name] = each.default
            elif each.default_factory is not MISSING:
                values[name] = each.default_factory()
            elif name not in suggested:
                problems.append(Problem(name, "is missing; every experiment needs this table."))
        for name in suggested:
            values.pop(name, None)  # It is present under a wrong name, so no check may report it missing.
        if problems:
            raise ConfigError([*problems, *cross_problems(values)])
        return cls(**values)

    @property
    def loop_kind(self) -> str:
        """Name of the training loop: [loop] kind, or the one that fits the kind of data."""
        return self.loop.kind or ("online" if self.data is None else "offline")

    def sources(self) -> dict[str, SourceSettings | DataSettings]:
        """Returns the sources of prompts and examples, including held-out ones, by table."""
        sources = {"prompts": self.prompts, "data": self.data}
        if self.evaluation is not None:
            sources |= {
                "evaluation.prompts": self.evaluation.prompts,
                "evaluation.data": self.evaluation.data,
            }
        return {table: source for table, source in sources.items() if source is not None}

    def dataflow(self) -> tuple[Node, ...]:
        """Returns the nodes of a step in execution order, with the batch keys that each reads and writes."""
        roles = [name for name in ("reference", "teacher") if getattr(self, name) is not None]
        rewards = [(each.label, each.component) for each in self.reward]
        critic = None if self.critic is None else self.critic.loss
        return dataflow_nodes(
            self.algorithm,
            rewards,
            roles,
            self.data,
            critic,
            prompts=self.prompts,
            sampler=self.sampler,
            in_environment=self.environment is not None,
        )

    def scored_keys(self) -> tuple[frozenset[str], bool]:
        """Returns the keys that models compute at stage `score`, and whether the update can compute
        ``old_logprob`` itself where the rollouts are on-policy."""
        return scored_keys(self.dataflow(), self.loop.minibatches * self.loop.epochs)
