"""Rollouts with their scores, from a policy that is trained or only sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import collectives
from titanrl.rollout.batches import sample_batch, score_batch
from titanrl.rollout.context import start_sampler
from titanrl.rollout.environments.start import start_environment
from titanrl.rollout.rewards import Failures, Scored

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict

    from titanrl.config.tables import Reward
    from titanrl.engine import Engine
    from titanrl.protocols import RolloutRequest, Sampler, SamplerSettings
    from titanrl.rollout.context import GeneratorTables, RolloutContext
    from titanrl.rollout.environments.runner import EnvironmentRunner

__all__ = ["Generator", "ScoredResponse", "ScoredRollouts", "generate_and_score", "load_generator"]


class ScoredResponse(NamedTuple):
    """One sampled response and its scores."""

    text: str
    tokens: int
    """Its length, including the end token."""
    finish_reason: int
    """A ``FinishReason``."""
    reward: float
    """The weighted sum of the rewards."""
    rewards: dict[str, float]
    """Label -> value without its weight."""


class ScoredRollouts(NamedTuple):
    """The responses of all ranks."""

    responses: list[ScoredResponse]
    failures: int
    """Scores that are a reward's ``failure_score``, because it failed."""
    reasons: dict[str, str]
    """Label of each reward that failed -> its first error."""


@dataclass(slots=True, kw_only=True)
class Generator:
    """The live parts of a policy that is sampled from and not trained, on this rank."""

    engine: Engine
    tokenizer: ChatTokenizer
    sampler: Sampler
    sampler_settings: SamplerSettings
    rewards: tuple[Reward, ...]
    environment: EnvironmentRunner | None
    """None: each rollout is one response to its prompt."""
    model_path: str
    max_length: int
    """Longest prompt + response, tokens."""
    seed: int

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and output."""
        return self.engine.rank == 0

    def close(self) -> None:
        if self.environment is not None:
            self.environment.close()
        self.sampler.close()
        self.engine.close()


def load_generator(
    tables: GeneratorTables, run: Path | None = None, step: str | int | None = None
) -> Generator:
    """Return the policy of an experiment with its sampler, without reference, teacher and critic.

    Args:
        tables: a checked experiment with a [sampler], or the tables of one.
        run: folder of a run, whose checkpoint is loaded; None: the weights of [model] path.
        step: of the checkpoint, or "best"; None: the newest whole one.

    Raises:
        ConfigError: the run has no whole checkpoint, or not the chosen one.
    """
    from titanrl.engine import Engine, EngineConfig, set_threads
    from titanrl.engine.export import checkpoint_of
    from titanrl.engine.restore import load_weights

    model, settings, seed = tables.model, tables.sampler, tables.run.seed
    assert settings is not None
    set_threads()
    torch.manual_seed(seed)
    tokenizer = ChatTokenizer(model.path, model.chat_template)
    config = EngineConfig(
        model=model.path,
        head=model.head,
        heads=model.heads,
        head_dtype=model.head_dtype,
        training=tables.training,
        parallelism=tables.parallelism,
        compile=tables.compile,
        activation_checkpoint=tables.activation_checkpoint,
    )
    engine = Engine(config)
    if run is not None:
        load_weights(engine.modules, checkpoint_of(run, step))
    sampler = start_sampler(
        settings,
        engine,
        tokenizer,
        training=tables.training,
        model_path=model.path,
        seed=seed,
        head_dtype=model.head_dtype,
    )
    sampler.load(engine.weights(sampler.weight_dtype), version=0)
    environment = None
    if tables.environment is not None:
        environment = start_environment(
            tables.environment,
            tokenizer,
            sampler=settings,
            max_length=tables.training.seq_len,
            seed=seed,
        )
    return Generator(
        engine=engine,
        tokenizer=tokenizer,
        sampler=sampler,
        sampler_settings=settings,
        rewards=tables.reward,
        environment=environment,
        model_path=model.path,
        max_length=tables.training.seq_len,
        seed=seed,
    )


def generate_and_score(
    context: RolloutContext,
    requests: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
    unscored: bool = False,
) -> ScoredRollouts:
    """Return the response to each request with its scores, in order, on every rank; a collective.

    Each rank scores its own shard. Of a rollout in an environment, this is the last response of the agent
    that acted first.

    Args:
        context: the policy, its sampler and its rewards.
        requests: all requests, the same on every rank.
        step: the training step, part of the random seed.
        seed: the run's seed.
        temperature: divides the logits; None: the sampler's.
        greedy: take the most probable token.
        unscored: whether a response on which a reward with on_failure = "unscored" fails gets NaN.
    """
    sampled = sample_batch(context, requests, step=step, seed=seed, temperature=temperature, greedy=greedy)
    batch = sampled.batch
    responses: list[tuple[int, ScoredResponse]] = []
    failures = Failures({}, {})

    def score() -> Scored | None:
        return None if batch is None else score_batch(context, batch, unscored=unscored)

    scored = collectives.abandon_together(score)
    if batch is not None and scored is not None:
        scores, failures = scored.scores, scored.failures
        labels = [term.label for term in context.rewards]
        tokens = batch["loss_mask"].sum(1)
        for index, rows in zip(sampled.indices, _rows_of_rollouts(batch), strict=True):
            row = rows[-1]
            response = ScoredResponse(
                text=batch["text", "response"][row],
                tokens=int(tokens[rows].sum()),
                finish_reason=int(batch["finish_reason"][row]),
                reward=float(scores["reward"][row]),
                rewards={label: float(scores["rewards", label][row]) for label in labels},
            )
            responses.append((index, response))
    group, degree = context.engine.dp_group, context.engine.dp_degree
    failed: list[Failures] = collectives.gather_objects([failures], group, degree)
    by_index = dict(collectives.gather_objects(responses, group, degree))
    reasons = {label: reason for each in reversed(failed) for label, reason in each.reasons.items()}
    count = int(sum(sum(each.counts.values()) for each in failed))
    return ScoredRollouts([by_index[index] for index in range(len(requests))], count, reasons)


def _rows_of_rollouts(batch: TensorDict) -> list[list[int]]:
    """Return the rows of each rollout, in order; of several agents, those of the one that acted first."""
    if "rollout_id" not in batch:
        return [[row] for row in range(len(batch))]
    rows: dict[int, list[int]] = {}
    agents: dict[int, int] = {}
    for row, (rollout, agent) in enumerate(
        zip(batch["rollout_id"].tolist(), batch["agent_id"].tolist(), strict=True)
    ):
        if agents.setdefault(rollout, agent) == agent:
            rows.setdefault(rollout, []).append(row)
    return list(rows.values())
