"""Everything that lives as long as a run: engine, sampler, prompt feeds, tokenizer, coefficients, state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from titanrl.loop.prompts import PromptFeed
from titanrl.loop.state import LoopState
from titanrl.loop.tokens import Tokens
from titanrl.objective import Objective
from titanrl.protocols import PromptRow, SamplerHost

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.engine import Engine
    from titanrl.protocols import Sampler

__all__ = ["Session", "open_session"]


@dataclass(slots=True, kw_only=True)
class Session:
    """The live parts of one run on this rank."""

    experiment: Experiment
    engine: Engine
    sampler: Sampler
    tokens: Tokens
    feed: PromptFeed
    held_out: PromptFeed | None
    scored_keys: frozenset[str]
    """Batch keys that models compute at stage `score`, because some component reads them."""
    scores_greedy: bool
    """Whether the greedy answer to each prompt is sampled and scored too, for ``baseline_reward``."""
    objective: Objective
    state: LoopState

    @property
    def seed(self) -> int:
        return self.experiment.run.seed

    @property
    def is_main(self) -> bool:
        """Whether this rank writes and shows."""
        return self.engine.rank == 0

    def local_rows(self, first_group: int) -> list[PromptRow]:
        """Returns this rank's share of the next prompts; every rank's feed moves on alike."""
        loop = self.experiment.loop
        rows = self.feed.take(loop.prompts_per_step, loop.samples_per_prompt, first_group)
        rank, degree = self.engine.dp_rank, self.engine.dp_degree
        first, last = (loop.prompts_per_step * r // degree for r in (rank, rank + 1))
        return rows[first * loop.samples_per_prompt : last * loop.samples_per_prompt]

    def coefficients(self) -> tuple[float, float]:
        """Returns beta of the KL term in the loss and eta of the entropy bonus, 0 where there is none."""
        kl, entropy = self.experiment.algorithm.kl_in_loss, self.experiment.algorithm.entropy
        return (
            0.0 if kl is None else kl.controller.coefficient,
            0.0 if entropy is None else entropy.coefficient,
        )

    def control(self, metrics: dict[str, float], *, num_sequences: int, step: int) -> None:
        """Shows the step's mean KL and entropy to their controllers; adds what was used to ``metrics``."""
        algorithm = self.experiment.algorithm
        if algorithm.kl is not None:
            controller = algorithm.kl.controller
            metrics["kl/coefficient"] = controller.coefficient
            if "kl/value" in metrics:
                controller.update(metrics["kl/value"], num_sequences, step)
        if algorithm.entropy is not None:
            metrics["loss/entropy_coefficient"] = algorithm.entropy.coefficient
            if "loss/entropy" in metrics:
                algorithm.entropy.update(metrics["loss/entropy"], num_sequences, step)

    def save(self) -> None:
        """Writes a checkpoint if one is due."""
        step = self.state.step
        self.engine.save(step, last=step == self.experiment.loop.steps)

    def close(self) -> None:
        self.sampler.close()
        self.engine.close()


def open_session(experiment: Experiment, folder: Path, *, resume: bool) -> Session:
    """Returns the live parts, built in the order that lets vLLM join the trainer's process group."""
    from titanrl.engine import Engine, EngineConfig, set_threads

    settings, algorithm, seed = experiment.sampler, experiment.algorithm, experiment.run.seed
    assert settings is not None
    assert experiment.prompts is not None
    set_threads()
    torch.manual_seed(seed)
    tokens = Tokens(experiment.model.path, experiment.model.chat_template)
    room = experiment.training.seq_len - settings.max_response_tokens
    feed = PromptFeed(experiment.prompts.open(), tokens.encode, seed=seed, max_prompt_tokens=room)
    held_out = None
    if experiment.evaluation is not None:
        assert experiment.evaluation.prompts is not None
        held_out = PromptFeed(
            experiment.evaluation.prompts.open(), tokens.encode, seed=seed, max_prompt_tokens=room,
            shuffle=False, table="evaluation.prompts",
        )  # fmt: skip
    scored_keys, on_policy = experiment.scored_keys()
    state = LoopState(feed, algorithm)
    engine = Engine(EngineConfig.of(experiment), state=state, checkpoints=folder / "checkpoints")
    if resume:
        engine.load()
    sampler = settings.start(
        SamplerHost(
            model_path=experiment.model.path, eos_ids=tokens.eos_ids, max_length=experiment.training.seq_len,
            seed=seed, device=engine.device.type, dtype=experiment.training.mixed_precision_param,
            dp_rank=engine.dp_rank, dp_degree=engine.dp_degree, engine=engine, tokenizer=tokens.tokenizer,
        )
    )  # fmt: skip
    kl, loop = algorithm.kl_in_loss, experiment.loop
    objective = Objective(
        loss=algorithm.loss,
        kl=None if kl is None else kl.estimator,
        importance_weight=kl is not None and kl.importance_weight,
        entropy=algorithm.entropy is not None,
        on_policy=on_policy,
        measures_gap=on_policy
        or (algorithm.old_logprob == "sampler" and loop.minibatches * loop.epochs == 1),
    )
    return Session(
        experiment=experiment, engine=engine, sampler=sampler, tokens=tokens, feed=feed, held_out=held_out,
        scored_keys=scored_keys, objective=objective, state=state,
        scores_greedy=any("baseline_reward" in actor.writes for actor in experiment.flows()),
    )  # fmt: skip
