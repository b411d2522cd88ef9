"""Answers of a policy, judged: in a training run, and where nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from titanrl.data.collate import collate_rollouts
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import collectives
from titanrl.rollout.context import start_sampler
from titanrl.rollout.rewards import Failures, score_on_leader
from titanrl.rollout.sampling import generate

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.config.tables import Reward
    from titanrl.engine import Engine
    from titanrl.protocols import RolloutRequest, Sampler, SamplerSettings
    from titanrl.rollout.context import RolloutContext

__all__ = ["ScoredResponse", "ScoredRollouts", "Generator", "generate_and_score", "load_generator"]


class ScoredResponse(NamedTuple):
    """One sampled answer and what it is worth."""

    text: str
    tokens: int
    """Its length, end token included."""
    finish_reason: int
    """A ``FinishReason``."""
    reward: float
    """The weighted sum of the rewards."""
    rewards: dict[str, float]
    """Label -> raw value."""


class ScoredRollouts(NamedTuple):
    """Answers of all ranks."""

    answers: list[ScoredResponse]
    failures: int
    """Scores that are a reward's ``failure_score``, as it could not judge."""
    reasons: dict[str, str]
    """Label of each reward that failed -> why it did the first time."""


@dataclass(slots=True, kw_only=True)
class Generator:
    """A policy that is sampled from and not trained: its live parts on this rank."""

    engine: Engine
    tokenizer: ChatTokenizer
    sampler: Sampler
    sampler_settings: SamplerSettings
    rewards: tuple[Reward, ...]
    model_path: str
    max_length: int
    """Longest prompt + response, tokens."""
    seed: int

    @property
    def is_main(self) -> bool:
        """Whether this rank writes and shows."""
        return self.engine.rank == 0

    def close(self) -> None:
        self.sampler.close()
        self.engine.close()


def load_generator(experiment: Experiment, run: Path | None = None) -> Generator:
    """Returns the policy of an experiment with its sampler, without reference, teacher and critic.

    Args:
        experiment: a checked experiment with a [sampler].
        run: folder of a run, whose newest checkpoint is loaded; None: the weights of [model] path.

    Raises:
        ConfigError: the run holds no complete checkpoint.
    """
    from titanrl.engine import Engine, EngineConfig, set_threads
    from titanrl.engine.export import checkpoint_of
    from titanrl.engine.restore import load_weights

    model, settings, seed = experiment.model, experiment.sampler, experiment.run.seed
    assert settings is not None
    set_threads()
    torch.manual_seed(seed)
    tokenizer = ChatTokenizer(model.path, model.chat_template)
    engine = Engine(replace(EngineConfig.of(experiment), critic=None, frozen={}))
    if run is not None:
        load_weights(engine.modules, checkpoint_of(run))
    sampler = start_sampler(
        settings, engine, tokenizer, training=experiment.training, model_path=model.path, seed=seed
    )
    sampler.load(engine.weights(sampler.weight_dtype), version=0)
    return Generator(
        engine=engine,
        tokenizer=tokenizer,
        sampler=sampler,
        sampler_settings=settings,
        rewards=experiment.reward,
        model_path=model.path,
        max_length=experiment.training.seq_len,
        seed=seed,
    )


def generate_and_score(
    host: RolloutContext,
    rows: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
) -> ScoredRollouts:
    """Returns the answer to each of ``rows``, in order and on every rank; each rank judges its share.

    Args:
        temperature: omitted: the sampler's. greedy: take the likeliest token.
    """
    kept, samples = generate(host, rows, step=step, seed=seed, temperature=temperature, greedy=greedy)
    answers: list[tuple[int, ScoredResponse]] = []
    failures = Failures({}, {})
    if kept:
        local = [rows[number] for number in kept]
        batch = collate_rollouts(local, samples, decode=host.tokenizer.decode, version=host.sampler.version)
        scored = score_on_leader(host.engine, batch, host.rewards)
        scores, failures = scored.scores, scored.failures
        labels = [each.label for each in host.rewards]
        for index, sample in enumerate(samples):
            answer = ScoredResponse(
                text=batch["text", "response"][index],
                tokens=len(sample.ids),
                finish_reason=sample.finish_reason,
                reward=float(scores["reward"][index]),
                rewards={label: float(scores["rewards", label][index]) for label in labels},
            )
            answers.append((kept[index], answer))
    group, degree = host.engine.dp_group, host.engine.dp_degree
    failed: list[Failures] = collectives.gather_objects([failures], group, degree)
    found = dict(collectives.gather_objects(answers, group, degree))
    reasons = {label: why for each in reversed(failed) for label, why in each.reasons.items()}
    count = int(sum(sum(each.counts.values()) for each in failed))
    return ScoredRollouts([found[number] for number in range(len(rows))], count, reasons)
