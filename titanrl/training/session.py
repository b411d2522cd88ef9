"""Everything that lives as long as a run: engine, sampler, feeds, tokenizer, coefficients, state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic

import torch
from typing_extensions import TypeVar

from titanrl.algorithm.objective import Objective
from titanrl.data.examples import ExampleLoader, held_out_data
from titanrl.data.prompts import PromptLoader, held_out_prompts
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import collectives
from titanrl.protocols import SamplerContext
from titanrl.training.reference_cache import ReferenceCache, reference_cache
from titanrl.training.state import LoopState

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.engine import Engine
    from titanrl.protocols import Sampler
    from titanrl.rollout.rewards import Failures

__all__ = ["Session", "open_session", "start_sampler"]

Feed = TypeVar("Feed", bound=PromptLoader | ExampleLoader, default=PromptLoader)


@dataclass(slots=True, kw_only=True)
class Session(Generic[Feed]):
    """The live parts of one run on this rank."""

    experiment: Experiment
    engine: Engine
    tokens: ChatTokenizer
    feed: Feed
    """What a step trains on: prompts, or fixed rows."""
    held_out: PromptLoader | None
    """Prompts that a validation asks; None: it asks none."""
    held_out_data: ExampleLoader | None
    """Examples on which a validation takes the loss; None: it takes none."""
    scored_keys: frozenset[str]
    """Batch keys that models compute at stage `score`, because some component reads them."""
    scores_greedy: bool
    """Whether the greedy answer to each prompt is sampled and scored too, for ``baseline_reward``."""
    objective: Objective
    critic_objective: Objective | None
    """None: there is no critic, or it is a head on the policy's body, which ``objective`` trains."""
    state: LoopState
    live_sampler: Sampler | None
    """None where nothing is sampled."""
    reference_cache: ReferenceCache | None = None
    """The reference's log-probs, in the place of its model; None: the model is there if it is read."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Label of each reward that ever failed -> why it did the first time, the same on every rank."""

    @property
    def sampler(self) -> Sampler:
        assert self.live_sampler is not None, "no [sampler]: nothing is sampled"
        return self.live_sampler

    @property
    def seed(self) -> int:
        return self.experiment.run.seed

    @property
    def is_main(self) -> bool:
        """Whether this rank writes and shows."""
        return self.engine.rank == 0

    def shard_slice(self, count: int) -> slice:
        """Returns this rank's part of ``count`` things in a row."""
        rank, degree = self.engine.dp_rank, self.engine.dp_degree
        return slice(count * rank // degree, count * (rank + 1) // degree)

    def trains_policy(self, step: int) -> bool:
        """Whether the policy is trained in ``step``: not while the critic warms up."""
        critic = self.experiment.critic
        return critic is None or step >= critic.warmup_steps

    def coefficients(self) -> tuple[float, float]:
        """Returns beta of the KL term in the loss and eta of the entropy bonus, 0 where there is none."""
        kl, entropy = self.experiment.algorithm.kl_in_loss, self.experiment.algorithm.entropy
        return (
            0.0 if kl is None else kl.controller.coefficient,
            0.0 if entropy is None else entropy.coefficient,
        )

    def control(self, metrics: dict[str, float], *, num_sequences: int, step: int) -> None:
        """Shows the step's mean KL and entropy to their controllers; adds what was used to ``metrics``.

        Steps in which the policy stood still teach them nothing.
        """
        algorithm, moved = self.experiment.algorithm, self.trains_policy(step)
        if algorithm.kl is not None:
            controller = algorithm.kl.controller
            metrics["kl/coefficient"] = controller.coefficient
            if moved and "kl/value" in metrics:
                controller.update(metrics["kl/value"], num_sequences, step)
        if algorithm.entropy is not None:
            metrics["loss/entropy_coefficient"] = algorithm.entropy.coefficient
            if moved and "loss/entropy" in metrics:
                algorithm.entropy.update(metrics["loss/entropy"], num_sequences, step)

    def failed(self, *failures: Failures) -> dict[str, float]:
        """Returns how often rewards failed on all ranks, by metric name, and keeps why; a collective."""
        counts = {name: count for each in failures for name, count in each.counts.items()}
        group, degree = self.engine.dp_group, self.engine.dp_degree
        counts = collectives.all_reduce_sums(counts, group, degree)
        if any(counts.values()):
            for each in collectives.gather_objects([each.reasons for each in failures], group, degree):
                self.reasons = each | self.reasons
        return counts

    def save(self, *, last: bool = False) -> None:
        """Writes a checkpoint if one is due, always after the last step."""
        step = self.state.step
        self.engine.save(step, last=last or step == self.experiment.loop.steps)

    def close(self) -> None:
        self.feed.loader.close()
        if self.live_sampler is not None:
            self.live_sampler.close()
        self.engine.close()


def open_session(
    experiment: Experiment,
    folder: Path,
    training_feed: Callable[[Experiment, ChatTokenizer], Feed],
    *,
    resume: bool,
) -> Session[Feed]:
    """Returns the live parts, built in the order that lets vLLM join the trainer's process group.

    Args:
        training_feed: opens what is trained on.
    """
    from titanrl.engine import Engine, EngineConfig, set_threads

    algorithm, seed = experiment.algorithm, experiment.run.seed
    set_threads()
    torch.manual_seed(seed)
    tokens = ChatTokenizer(experiment.model.path, experiment.model.chat_template)
    feed, held_out = training_feed(experiment, tokens), held_out_prompts(experiment, tokens)
    examples = held_out_data(experiment, tokens)
    scored_keys, on_policy = experiment.scored_keys()
    state = LoopState(feed.loader, algorithm)
    config = EngineConfig.of(experiment)
    cache = reference_cache(experiment, feed, examples) if isinstance(feed, ExampleLoader) else None
    if cache is not None and cache.is_complete:
        config = replace(config, frozen={k: v for k, v in config.frozen.items() if k != "reference"})
    engine = Engine(config, state=state, checkpoints=folder / "checkpoints")
    if cache is not None:
        if "reference" in engine.frozen:
            cache.fill(engine, live=experiment.report.progress)
            del engine.frozen["reference"]
        cache.load()
    if resume:
        engine.load()
    kl, loop = algorithm.kl_in_loss, experiment.loop
    critic = experiment.critic
    objective = Objective(
        loss=algorithm.loss,
        kl=None if kl is None else kl.estimator,
        importance_weight=kl is not None and kl.importance_weight,
        entropy=algorithm.entropy is not None,
        on_policy=on_policy,
        measures_logprob_diff=experiment.data is None
        and (on_policy or (algorithm.old_logprob == "sampler" and loop.minibatches * loop.epochs == 1)),
        value=critic.loss if critic is not None and critic.shared else None,
        value_coefficient=0.0 if critic is None else critic.coefficient or 0.0,
    )
    num_rows = None if experiment.data is not None else loop.prompts_per_step * loop.samples_per_prompt
    critic_objective = None if critic is None or critic.shared else Objective(loss=critic.loss)
    return Session(
        experiment=experiment, engine=engine, tokens=tokens, feed=feed, held_out=held_out,
        held_out_data=examples, scored_keys=scored_keys, objective=objective,
        critic_objective=critic_objective, state=state,
        scores_greedy=any("baseline_reward" in actor.writes for actor in experiment.flows()),
        reference_cache=cache, live_sampler=start_sampler(experiment, engine, tokens, num_rows),
    )  # fmt: skip


def start_sampler(
    experiment: Experiment, engine: Engine, tokens: ChatTokenizer, num_rows: int | None = None
) -> Sampler | None:
    """Returns the live sampler of an experiment, None where answers are fixed.

    Args:
        num_rows: answers asked for at a time, on all ranks together; None: unknown.
    """
    if experiment.sampler is None:
        return None
    return experiment.sampler.start(
        SamplerContext(
            model_path=experiment.model.path, eos_ids=tokens.eos_ids, max_length=experiment.training.seq_len,
            seed=experiment.run.seed, device=engine.device.type,
            dtype=experiment.training.mixed_precision_param,
            num_rows=num_rows,
            dp_rank=engine.dp_rank, dp_degree=engine.dp_degree, engine=engine, tokenizer=tokens.tokenizer,
        )
    )  # fmt: skip
