"""A training session: the live parts of a run on this rank, composed from the tables of its experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from titanrl.algorithm.dataflow import out_keys
from titanrl.algorithm.objective import Objective
from titanrl.data.examples import ExampleLoader, held_out_data
from titanrl.data.prompts import PromptLoader, held_out_prompts
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import collectives
from titanrl.errors import ConfigError, TrainingError
from titanrl.rollout.context import start_sampler
from titanrl.rollout.environments.start import start_environment
from titanrl.runtime import status
from titanrl.training.reference_cache import ReferenceCache, reference_cache
from titanrl.training.state import LoopState, components_of, seed_generators

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.algorithm.table import Algorithm
    from titanrl.config.experiment import Experiment
    from titanrl.config.tables import Critic, Evaluation, Loop, Reward
    from titanrl.engine import Engine
    from titanrl.protocols import Sampler, SamplerSettings
    from titanrl.rollout.environments.runner import EnvironmentRunner
    from titanrl.rollout.rewards import Failures

__all__ = ["Session", "open_session"]

Loader = TypeVar("Loader", bound=PromptLoader | ExampleLoader, default=PromptLoader)


@dataclass(slots=True, kw_only=True)
class Session(Generic[Loader]):
    """The live parts of one run on this rank, and the tables that its steps read."""

    algorithm: Algorithm
    loop: Loop
    engine: Engine
    tokenizer: ChatTokenizer
    loader: Loader
    """Training data: prompts, or examples of a dataset."""
    state: LoopState
    objective: Objective
    """Objective of an update on rollouts of the weights being trained, and offline."""
    off_policy_objective: Objective
    """The same for older rollouts: stage `score` computes ``old_logprob`` for it."""
    seed: int
    max_length: int
    """Maximum number of tokens of a row."""
    rewards: tuple[Reward, ...] = ()
    critic: Critic | None = None
    critic_objective: Objective | None = None
    """None: there is no critic, or it is a head on the policy's backbone, which ``objective`` trains."""
    evaluation: Evaluation | None = None
    eval_prompts: PromptLoader | None = None
    """Prompts that a validation samples responses to; None: none."""
    eval_examples: ExampleLoader | None = None
    """Examples on which a validation computes the loss; None: none."""
    is_value_model: bool = False
    """Whether the trained model is a value model: a reward model."""
    scored_keys: frozenset[str] = frozenset()
    """Batch keys that models compute at stage `score`, because some component reads them."""
    defers_old_logprob: bool = False
    """Whether the update computes ``old_logprob`` in on-policy steps, and stage `score` only in others."""
    scores_greedy: bool = False
    """Whether the greedy response to each prompt is sampled and scored too, for ``baseline_reward``."""
    out_keys: tuple[str, ...] = ()
    """Batch keys that the source of the prompts and the sampler add."""
    sampler_table: SamplerSettings | None = None
    live_sampler: Sampler | None = None
    """None where nothing is sampled."""
    environment: EnvironmentRunner | None = None
    """None: each rollout is one response to its prompt."""
    reference_cache: ReferenceCache | None = None
    """The reference's log-probs, instead of its model; None: the model is loaded if a component needs it."""
    logged_samples: int = 0
    """Rows of each step that samples.jsonl gets."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Label of each reward that ever failed -> its first error, the same on every rank."""

    @property
    def sampler(self) -> Sampler:
        assert self.live_sampler is not None, "no [sampler]: nothing is sampled"
        return self.live_sampler

    @property
    def sampler_settings(self) -> SamplerSettings:
        assert self.sampler_table is not None, "no [sampler]: nothing is sampled"
        return self.sampler_table

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.engine.rank == 0

    @property
    def shares_critic(self) -> bool:
        """Whether the critic is a head on the policy's backbone."""
        return self.critic is not None and self.critic.shared

    def keys_to_score(self, *, on_policy: bool) -> frozenset[str]:
        """Returns the batch keys that models compute at stage `score`.

        Args:
            on_policy: whether the weights being trained sampled every response token of the batch; the update
                then computes ``old_logprob`` where the dataflow allows it.
        """
        deferred = {"old_logprob"} if on_policy and self.defers_old_logprob else set()
        return self.scored_keys - deferred

    def shard_slice(self, count: int) -> slice:
        """Returns this rank's part of ``count`` consecutive items."""
        rank, degree = self.engine.dp_rank, self.engine.dp_degree
        return slice(count * rank // degree, count * (rank + 1) // degree)

    def trains_policy(self, step: int) -> bool:
        """Returns whether ``step`` trains the policy: it does not while the critic warms up."""
        return self.critic is None or step >= self.critic.warmup_steps

    def coefficients(self) -> tuple[float, float]:
        """Returns beta of the KL term in the loss and eta of the entropy bonus, 0 where there is none."""
        kl, entropy = self.algorithm.kl_in_loss, self.algorithm.entropy
        return (
            0.0 if kl is None else kl.controller.coefficient,
            0.0 if entropy is None else entropy.coefficient,
        )

    def control(self, metrics: dict[str, float], *, num_sequences: int, step: int) -> None:
        """Updates the controllers from the step's mean KL and entropy, and logs their coefficients.

        Steps that do not train the policy leave the controllers as they are.

        Args:
            metrics: the step's metrics; those of the coefficients in use are added.
            num_sequences: rows of the step, over all ranks.
            step: number of the training step, from 0.
        """
        algorithm, is_trained = self.algorithm, self.trains_policy(step)
        if algorithm.kl is not None:
            controller = algorithm.kl.controller
            metrics["kl/coefficient"] = controller.coefficient
            if is_trained and "kl/value" in metrics:
                controller.update(metrics["kl/value"], num_sequences, step)
        if algorithm.entropy is not None:
            metrics["loss/entropy_coefficient"] = algorithm.entropy.coefficient
            if is_trained and "loss/entropy" in metrics:
                algorithm.entropy.update(metrics["loss/entropy"], num_sequences, step)

    def failed(self, *failures: Failures) -> dict[str, float]:
        """Returns the number of failures of rewards on all ranks by metric name; a collective.

        The reasons are stored in the session.
        """
        counts = {name: count for each in failures for name, count in each.counts.items()}
        group, degree = self.engine.dp_group, self.engine.dp_degree
        counts = collectives.all_reduce_sums(counts, group, degree)
        if any(counts.values()):
            for each in collectives.gather_objects([each.reasons for each in failures], group, degree):
                self.reasons = each | self.reasons
        return counts

    def refuse_broken_rewards(self, failures: Failures, num_rows: int) -> None:
        """Stops a run whose rewards fail on every row of its first batch; a collective.

        Such a reward is wrong itself; later, when a service that scores is away, an alert reports it.

        Args:
            failures: of the rewards on this rank's rows.
            num_rows: number of this rank's rows.

        Raises:
            TrainingError: a reward failed on every row of every rank in the run's first step.
        """
        if self.state.step > 0:
            return
        metrics = [f"reward/{reward.label}_failures" for reward in self.rewards]
        own = {name: failures.counts.get(name, 0.0) for name in metrics} | {"rows": float(num_rows)}
        counts = collectives.all_reduce_sums(own, self.engine.dp_group, self.engine.dp_degree)
        broken = [
            reward.label
            for reward, name in zip(self.rewards, metrics, strict=True)
            if counts[name] == counts["rows"] > 0
        ]
        if broken:
            reason = self.reasons.get(broken[0], "no reason was recorded")
            raise TrainingError(
                f"[[reward]] {broken[0]!r} failed on all {counts['rows']:.0f} responses of the first batch; "
                f"the first error: {reason}. Correct the reward, or the data that it reads: `titanrl check "
                "--data` shows the data."
            )

    def save(self, metrics: Mapping[str, float] | None = None, *, last: bool = False) -> bool:
        """Writes a checkpoint if one is due, and always after the last step; returns whether it did.

        Args:
            metrics: of the step; a validation may make its checkpoint the best one.
            last: whether to write one in any case.

        Raises:
            TrainingError: a weight is not finite; the checkpoints before this one remain.
        """
        step = self.state.step
        is_saved = self.engine.save(
            step,
            last=last or step == self.loop.steps,
            metrics=metrics,
            before=self.refuse_nonfinite_weights,
        )
        if is_saved:
            status.update(checkpoint=step)
        return is_saved

    def refuse_nonfinite_weights(self) -> None:
        """Stops a run with weights that are not finite; a collective.

        Raises:
            TrainingError: names some of these weights.
        """
        if names := self.engine.nonfinite_weights():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise TrainingError(
                f"weights are not finite after step {self.state.step}: {', '.join(names[:3])}{more}; an "
                "update was too large. Lower [optimizer] lr or [training] max_norm, and resume from an "
                "earlier checkpoint."
            )

    def close(self) -> None:
        self.loader.loader.close()
        if self.environment is not None:
            self.environment.close()
        if self.live_sampler is not None:
            self.live_sampler.close()
        self.engine.close()


def open_session(
    experiment: Experiment,
    folder: Path,
    open_loader: Callable[[Experiment, ChatTokenizer], Loader],
    *,
    resume: bool,
) -> Session[Loader]:
    """Returns the live parts of a run, built in the order that lets vLLM join the trainer's process group.

    Only this function reads the whole experiment: all other functions get the tables that they need.

    Args:
        experiment: a checked experiment.
        folder: the run folder.
        open_loader: opens the training data.
        resume: whether to continue from the newest checkpoint in the folder.

    Raises:
        ConfigError: there is no checkpoint to resume from, or a mistake that only shows on this machine.
    """
    from titanrl.engine import Engine, EngineConfig, set_threads

    algorithm, loop, critic, seed = (
        experiment.algorithm,
        experiment.loop,
        experiment.critic,
        experiment.run.seed,
    )
    set_threads()
    seed_generators(seed)
    tokenizer = ChatTokenizer(experiment.model.path, experiment.model.chat_template)
    loader, eval_prompts = open_loader(experiment, tokenizer), held_out_prompts(experiment, tokenizer)
    eval_examples = held_out_data(experiment, tokenizer)
    scored_keys, defers_old_logprob = experiment.scored_keys()
    state = LoopState(loader.loader, components_of(algorithm, experiment.reward, critic, experiment.sampler))
    config = EngineConfig.of(experiment)
    cache = reference_cache(experiment, loader, eval_examples) if isinstance(loader, ExampleLoader) else None
    if cache is not None and cache.is_complete:
        config = replace(config, frozen={k: v for k, v in config.frozen.items() if k != "reference"})
    engine = Engine(config, state=state, checkpoints=folder / "checkpoints")
    if cache is not None:
        if "reference" in engine.frozen:
            cache.fill(engine, live=experiment.report.progress)
            del engine.frozen["reference"]
        cache.load()
    if resume and not engine.load():
        raise ConfigError(f"'{folder}' holds no complete checkpoint to resume from; start a new run.")
    if resume:
        status.update(checkpoint=state.step)
    kl = algorithm.kl_in_loss
    is_one_step = loop.minibatches * loop.epochs == 1
    objective = Objective(
        loss=algorithm.loss,
        kl=None if kl is None else kl.estimator,
        importance_weight=kl is not None and kl.importance_weight,
        entropy=algorithm.entropy is not None,
        on_policy=defers_old_logprob,
        measures_logprob_diff=experiment.data is None
        and (defers_old_logprob or (algorithm.old_logprob == "sampler" and is_one_step)),
        value=critic.loss if critic is not None and critic.shared else None,
        value_coefficient=0.0 if critic is None else critic.coefficient or 0.0,
    )
    live_sampler = None
    if experiment.sampler is not None:
        num_rows = None if experiment.data is not None else loop.prompts_per_step * loop.samples_per_prompt
        live_sampler = start_sampler(
            experiment.sampler,
            engine,
            tokenizer,
            training=experiment.training,
            model_path=experiment.model.path,
            seed=seed,
            head_dtype=experiment.model.head_dtype,
            num_rows=num_rows,
        )
    environment = None
    if experiment.environment is not None and experiment.sampler is not None:
        environment = start_environment(
            experiment.environment,
            tokenizer,
            sampler=experiment.sampler,
            max_length=experiment.training.seq_len,
            seed=seed,
            by_turn=algorithm.compares_turns,
        )
    return Session(
        algorithm=algorithm,
        loop=loop,
        engine=engine,
        tokenizer=tokenizer,
        loader=loader,
        state=state,
        objective=objective,
        off_policy_objective=replace(objective, on_policy=False, measures_logprob_diff=False),
        seed=seed,
        max_length=experiment.training.seq_len,
        rewards=experiment.reward,
        critic=critic,
        critic_objective=None if critic is None or critic.shared else Objective(loss=critic.loss),
        evaluation=experiment.evaluation,
        eval_prompts=eval_prompts,
        eval_examples=eval_examples,
        is_value_model=experiment.model.head == "value",
        scored_keys=scored_keys,
        defers_old_logprob=defers_old_logprob,
        scores_greedy=any("baseline_reward" in node.writes for node in experiment.dataflow()),
        out_keys=(*out_keys(experiment.prompts), *out_keys(experiment.sampler)),
        sampler_table=experiment.sampler,
        live_sampler=live_sampler,
        environment=environment,
        reference_cache=cache,
        logged_samples=experiment.report.samples_per_step,
    )
