"""Checks across tables; the parameters of a check are the tables that it needs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from titanrl.algorithm.dataflow import check_dataflow, dataflow_nodes, label
from titanrl.algorithm.table import Algorithm, controls_entropy
from titanrl.config.data_checks import DATA_CHECKS
from titanrl.config.environment import environment_problems
from titanrl.config.report_tables import profile_problems
from titanrl.config.rft import rft_problems
from titanrl.config.role_checks import ROLE_CHECKS
from titanrl.errors import Problem, did_you_mean
from titanrl.registry import declared, name_of
from titanrl.registry.loops import loop_names
from titanrl.registry.ranges import ranges_of

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Checkpoint, Parallelism, Training
    from titanrl.config.environment import EnvironmentTable
    from titanrl.config.tables import Critic, Evaluation, Loop, Model, Reference, Reward, Teacher
    from titanrl.protocols import DataSettings, SamplerSettings, SourceSettings

__all__ = ["cross_problems"]


def cross_problems(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems across ``tables``; a check is skipped if a table that it needs is missing."""
    problems: list[Problem] = []
    for check in CHECKS:
        needed = inspect.signature(check).parameters
        if all(name in tables for name in needed):
            problems += check(**{name: tables[name] for name in needed})
    return problems


def _dataflow(
    algorithm: Algorithm,
    reward: tuple[Reward, ...],
    reference: Reference | None,
    teacher: Teacher | None,
    data: DataSettings | None,
    critic: Critic | None,
    prompts: SourceSettings | None,
    sampler: SamplerSettings | None,
    environment: EnvironmentTable | None,
) -> list[Problem]:
    tables = {"reference": reference, "teacher": teacher}
    roles = [name for name, table in tables.items() if table is not None]
    rewards = [(each.label, each.component) for each in reward]
    loss = None if critic is None else critic.loss
    nodes = dataflow_nodes(
        algorithm,
        rewards,
        roles,
        data,
        loss,
        prompts=prompts,
        sampler=sampler,
        in_environment=environment is not None,
    )
    return check_dataflow(nodes)


def _kl_in_reward_is_read(algorithm: Algorithm) -> list[Problem]:
    kl, advantage = algorithm.kl, algorithm.advantage
    if kl is None or kl.placement != "reward" or "token_reward" in declared(advantage, "in_keys"):
        return []
    if advantage is None:
        reader, remedy = "no advantage", "choose placement 'loss'"
    elif hasattr(advantage, "source"):
        reader = label(advantage)
        remedy = (
            "set [algorithm.advantage] source = 'token_reward', or choose placement 'advantage' or 'loss'"
        )
    else:
        reader, remedy = label(advantage), "choose placement 'advantage' or 'loss'"
    text = f"'reward' puts the KL into token_reward, which {reader} does not read; {remedy}."
    return [Problem("algorithm.kl", text, "placement")]


def _scaled_rewards_are_read(algorithm: Algorithm, data: DataSettings | None) -> list[Problem]:
    if algorithm.reward_scaling is None:
        return []
    if data is not None:
        text = "must be absent with [data], whose rewards are labels; remove it."
        return [Problem("algorithm.reward_scaling", text)]
    actors = [actor for actor in dataflow_nodes(algorithm, ()) if "reward" in actor.reads]
    if actors[-1].table != "algorithm.reward_scaling":
        return []
    text = "scales a reward that no component reads; remove it, or choose another advantage."
    return [Problem("algorithm.reward_scaling", text)]


def _loop_kind(loop: Loop, prompts: SourceSettings | None, data: DataSettings | None) -> list[Problem]:
    kind, known = loop.kind, loop_names()
    if kind is not None and kind not in known:
        near = did_you_mean(kind, known) or "."
        return [Problem("loop", f"must be one of {', '.join(known)}, got {kind!r}{near}", "kind")]
    if kind == "online" and prompts is None:
        return [Problem("loop", "'online' samples responses to [prompts], which is missing; add it.", "kind")]
    if kind == "offline" and data is None:
        return [Problem("loop", "'offline' trains on [data], which is missing; add it.", "kind")]
    return []


def _steps_can_end_early(algorithm: Algorithm, loop: Loop) -> list[Problem]:
    if loop.target_kl is None:
        return []
    problems = []
    if loop.minibatches * loop.epochs == 1:
        text = (
            "is not used where a batch is one optimizer step; leave it out, or raise epochs or minibatches."
        )
        problems.append(Problem("loop", text, "target_kl"))
    if "old_logprob" not in declared(algorithm.loss, "in_keys"):
        text = f"needs a loss that reports approx_kl, got {label(algorithm.loss)}; leave it out."
        problems.append(Problem("loop", text, "target_kl"))
    return problems


def _group_size(algorithm: Algorithm, loop: Loop, data: DataSettings | None) -> list[Problem]:
    if loop.samples_per_prompt >= 2 or data is not None:
        return []
    if algorithm.pairs_responses:
        text = f"must be >= 2 for {label(algorithm.loss)}, got 1; its pairs are responses to one prompt."
        return [Problem("loop", text, "samples_per_prompt")]
    if not algorithm.compares_groups:
        return []
    text = (
        f"must be >= 2 for {label(algorithm.advantage)}, got {loop.samples_per_prompt}; it compares the "
        "responses to one prompt (a class that does not declares is_group_relative = False)."
    )
    return [Problem("loop", text, "samples_per_prompt")]


def _whole_groups(loop: Loop, parallelism: Parallelism) -> list[Problem]:
    ranks = parallelism.data_parallel_replicate_degree * max(parallelism.data_parallel_shard_degree, 1)
    if loop.prompts_per_step % (loop.minibatches * ranks) == 0:
        return []
    text = (
        f"must be a multiple of minibatches ({loop.minibatches}) times data-parallel ranks ({ranks}), "
        f"got {loop.prompts_per_step}; groups are never split."
    )
    return [Problem("loop", text, "prompts_per_step")]


def _room_for_a_prompt(training: Training, sampler: Any) -> list[Problem]:
    if sampler is None or sampler.max_response_tokens < training.seq_len:
        return []
    text = (
        f"must be > [sampler] max_response_tokens ({sampler.max_response_tokens}), got {training.seq_len}; "
        "it holds the prompt and the response."
    )
    return [Problem("training", text, "seq_len")]


def _labels(reward: tuple[Reward, ...]) -> list[Problem]:
    counts = Counter(each.label for each in reward)
    return [
        Problem(f"reward.{i}", f"must be unique, got {each.label!r} again; give this one its own.", "label")
        for i, each in enumerate(reward)
        if counts[each.label] > 1 and any(other.label == each.label for other in reward[:i])
    ]


def _combination(reward: tuple[Reward, ...], algorithm: Algorithm, loop: Loop) -> list[Problem]:
    if reward and all(each.combine == "gate" for each in reward):
        text = "'gate' cuts off other rewards, but there are none; give one of them another value."
        return [Problem("reward.0", text, "combine")]
    problems = []
    for i, each in enumerate(reward):
        if each.normalize != "none" and "baseline_reward" in declared(algorithm.advantage, "in_keys"):
            text = (
                f"must be 'none' for {label(algorithm.advantage)}, which compares the reward with that of a "
                f"greedy response, got {each.normalize!r}; leave it out."
            )
            problems.append(Problem(f"reward.{i}", text, "normalize"))
        if each.normalize == "group" and loop.samples_per_prompt < 2:
            text = "'group' needs [loop] samples_per_prompt >= 2, got 1; use 'batch'."
            problems.append(Problem(f"reward.{i}", text, "normalize"))
    return problems


def _judge(evaluation: Evaluation | None, reward: tuple[Reward, ...]) -> list[Problem]:
    labels = [each.label for each in reward]
    if evaluation is None or evaluation.prompts is None:
        return []
    if not labels:
        return [Problem("evaluation", "needs a [[reward]] that scores the responses; add one.")]
    return [
        Problem(
            "evaluation",
            f"must be the label of a [[reward]], got {named!r}{did_you_mean(named, labels)} "
            f"Labels: {', '.join(labels)}.",
            key,
        )
        for key, named in (("reward", evaluation.reward), ("best_of_reward", evaluation.best_of_reward))
        if named is not None and named not in labels
    ]


def _entropy_controller(algorithm: Algorithm) -> list[Problem]:
    controller = algorithm.entropy
    if controller is None or controls_entropy(controller) or not hasattr(controller, "target"):
        return []
    got = name_of(controller)
    text = f"must control the entropy, got {got!r}, which controls a KL term; use 'entropy_target'."
    return [Problem("algorithm.entropy", text, "name")]


def _value_head(algorithm: Algorithm, model: Model) -> list[Problem]:
    loss, reads_value = algorithm.loss, "value" in declared(algorithm.loss, "needs")
    if model.head == "language":
        text = f"must train a language model, got {name_of(loss)!r}, which needs [model] head = 'value'."
        return [Problem("algorithm.loss", text, "name")] if reads_value else []
    problems = []
    if not reads_value:
        text = (
            f"must train values under [model] head = 'value', got {name_of(loss)!r}, which reads log-probs."
        )
        problems.append(Problem("algorithm.loss", text, "name"))
    problems += [
        Problem(f"algorithm.{name}", "must be left out under [model] head = 'value', which has no log-probs.")
        for name, term in (("kl", algorithm.kl), ("entropy", algorithm.entropy))
        if term is not None
    ]
    return problems


def _critic(critic: Critic | None, data: DataSettings | None, loop: Loop) -> list[Problem]:
    if critic is None:
        return []
    problems = []
    if data is not None:
        problems.append(
            Problem("critic", "must be absent with [data]: it estimates values of sampled responses.")
        )
    if "value" not in declared(critic.loss, "needs"):
        text = f"must train values, got {name_of(critic.loss)!r}, which reads log-probs; use 'value'."
        problems.append(Problem("critic.loss", text, "name"))
    if critic.warmup_steps >= loop.steps:
        text = (
            f"must be < [loop] steps ({loop.steps}), got {critic.warmup_steps}; the policy would never be "
            "updated."
        )
        problems.append(Problem("critic", text, "warmup_steps"))
    return problems


def _value_model_cannot_sample(model: Model, sampler: Any) -> list[Problem]:
    if model.head == "language" or sampler is None:
        return []
    text = "must be 'language' where responses are sampled, got 'value'; a reward model trains on [data]."
    return [Problem("model", text, "head")]


def _full_distribution(sampler: Any) -> list[Problem]:
    off = {"top_k": (None, 0, -1), "top_p": (None, 1.0), "min_p": (None, 0.0)}
    return [
        Problem(
            "sampler",
            f"must be off in training, got {getattr(sampler, key)}; the trainer's log-probs are those of the "
            "whole distribution, so the ratio would be wrong.",
            key,
        )
        for key, values in off.items()
        if getattr(sampler, key, None) not in values
    ]


def _best_checkpoint_is_measured(checkpoint: Checkpoint, evaluation: Evaluation | None) -> list[Problem]:
    if checkpoint.keep_best is None or evaluation is not None:
        return []
    text = "is a metric of the validation, and [evaluation] is missing; add it, or remove the key."
    return [Problem("checkpoint", text, "keep_best")]


def _evaluation_temperature(sampler: Any, evaluation: Evaluation | None) -> list[Problem]:
    """The sampler draws held-out responses too, except greedy ones."""
    if evaluation is None or sampler is None or evaluation.temperature == 0:
        return []
    allowed = ranges_of(sampler.__class__).get("temperature")
    if allowed is None or allowed.contains(evaluation.temperature):
        return []
    text = (
        f"must be 0 or in {allowed}, as of the sampler {name_of(sampler)!r}, got {evaluation.temperature:g}."
    )
    return [Problem("evaluation", text, "temperature")]


CHECKS: tuple[Callable[..., list[Problem]], ...] = (
    *DATA_CHECKS,
    *ROLE_CHECKS,
    _best_checkpoint_is_measured,
    rft_problems,
    environment_problems,
    profile_problems,
    _loop_kind,
    _dataflow,
    _kl_in_reward_is_read,
    _scaled_rewards_are_read,
    _steps_can_end_early,
    _group_size,
    _whole_groups,
    _room_for_a_prompt,
    _labels,
    _combination,
    _judge,
    _entropy_controller,
    _value_head,
    _value_model_cannot_sample,
    _critic,
    _full_distribution,
    _evaluation_temperature,
)
