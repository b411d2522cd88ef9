"""Checks of online and offline tables: those for [prompts], those for [data], and the data of a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from titanrl.algorithm.dataflow import dataflow_nodes, label
from titanrl.errors import Problem
from titanrl.registry import component_class, declared, declares, name_of, names

if TYPE_CHECKING:
    from titanrl.algorithm.table import Algorithm
    from titanrl.config.alerts import Alerts
    from titanrl.config.tables import Evaluation, Loop, Reward
    from titanrl.protocols import DataSettings, SourceSettings

__all__ = ["DATA_CHECKS"]


def _prompts_or_data(prompts: SourceSettings | None, data: DataSettings | None) -> list[Problem]:
    if (prompts is None) != (data is None):
        return []
    got = "neither" if data is None else "both"
    text = f"or [data] must be given, got {got}; responses are sampled for [prompts], or read from [data]."
    return [Problem("prompts", text)]


def _sampling(
    prompts: SourceSettings | None,
    data: DataSettings | None,
    sampler: Any,
    reward: tuple[Reward, ...],
    evaluation: Evaluation | None,
) -> list[Problem]:
    has_eval_prompts = evaluation is not None and evaluation.prompts is not None
    if data is None or has_eval_prompts:
        table = "[prompts]" if data is None else "[evaluation.prompts]"
        is_missing = sampler is None and (has_eval_prompts or prompts is not None)
        return [Problem("sampler", f"is missing; it samples responses for {table}.")] if is_missing else []
    needless = (
        "must be absent with [data], which samples no responses, unless there are [evaluation.prompts]."
    )
    tables = [*["sampler"][: sampler is not None], *(f"reward.{i}" for i in range(len(reward)))]
    return [Problem(table, needless) for table in tables]


def _keys_of_sampling(
    data: DataSettings | None, loop: Loop, evaluation: Evaluation | None, sampler: Any
) -> list[Problem]:
    if data is None:
        return []
    unused = [
        ("loop", cast(Any, loop), key)
        for key in ("samples_per_prompt", "dynamic_sampling", "max_logprob_diff")
    ]
    if evaluation is not None and evaluation.prompts is None:
        keys = ("samples_per_prompt", "temperature", "reward", "best_of_reward")
        unused += [("evaluation", evaluation, key) for key in keys]
    if sampler is not None:
        unused.append(("sampler", sampler, "temperature"))
    return [
        Problem(table, f"is not used with [data], got {value!r}; leave it out.", key)
        for table, settings, key in unused
        if (value := getattr(settings, key)) != type(settings).__dataclass_fields__[key].default
    ]


ONLINE_ALERTS = (
    "entropy",
    "failed_rewards",
    "length_growth",
    "logprob_diff",
    "reward_hacking",
    "zero_std_groups",
)
"""Alerts that only runs with sampled responses raise."""


def _alerts(data: DataSettings | None, alerts: Alerts, algorithm: Algorithm) -> list[Problem]:
    if data is None:
        if algorithm.compares_groups or "zero_std_groups" not in alerts.stop:
            return []
        got = "no advantage" if algorithm.advantage is None else label(algorithm.advantage)
        text = (
            f"must not name 'zero_std_groups', which {got} never raises: it compares no groups; leave it out."
        )
        return [Problem("alerts", text, "stop")]
    defaults, problems = type(alerts)(), []
    for key in ONLINE_ALERTS:
        if (value := getattr(alerts, key)) != getattr(defaults, key):
            text = f"is not used with [data], got {value!r}: it is about sampled responses; leave it out."
            problems.append(Problem("alerts", text, key))
    problems += [
        Problem(
            "alerts",
            f"must not name {key!r} with [data]: it is about sampled responses; leave it out.",
            "stop",
        )
        for key in alerts.stop
        if key in ONLINE_ALERTS
    ]
    return problems


def _held_out(
    prompts: SourceSettings | None, data: DataSettings | None, evaluation: Evaluation | None
) -> list[Problem]:
    if evaluation is None or (prompts is None) == (data is None):
        return []
    if data is not None:
        if evaluation.data is not None or evaluation.prompts is not None:
            return []
        text = "is missing; give held-out data, or [evaluation.prompts], or both."
        return [Problem("evaluation.data", text)]
    problems = []
    if evaluation.prompts is None:
        text = "is missing; an experiment with [prompts] is evaluated on held-out prompts."
        problems.append(Problem("evaluation.prompts", text))
    if evaluation.data is not None:
        text = "must be absent from an experiment with [prompts]; use [evaluation.prompts]."
        problems.append(Problem("evaluation.data", text))
    return problems


def _source_kinds(
    prompts: SourceSettings | None, data: DataSettings | None, evaluation: Evaluation | None
) -> list[Problem]:
    sources: list[tuple[str, Any, bool]] = [("prompts", prompts, False), ("data", data, True)]
    if evaluation is not None:
        sources.append(("evaluation.prompts", evaluation.prompts, False))
        sources.append(("evaluation.data", evaluation.data, True))
    problems = []
    for table, source, wants_data in sources:
        if source is None or is_data(type(source)) == wants_data:
            continue
        brings = "prompts without responses" if wants_data else "dataset examples"
        known = [each for each in names("source") if is_data(component_class("source", each)) == wants_data]
        text = f"must not be {name_of(source)!r}, which has {brings}; use one of: {', '.join(known)}."
        problems.append(Problem(table, text, "name"))
    return problems


def is_data(source: type) -> bool:
    """Whether a class of kind ``source`` gives dataset examples rather than prompts."""
    return declares(source, "is_paired")


def _pairs(algorithm: Algorithm, data: DataSettings | None) -> list[Problem]:
    wants_pairs = algorithm.pairs_responses
    if data is None or not is_data(type(data)) or data.is_paired == wants_pairs:
        return []
    got = f"got {data.format!r}" if hasattr(data, "format") else f"got {name_of(data)!r}"
    needs = "chosen and rejected" if wants_pairs else "no pairs, whose rejected responses it would also learn"
    use = "use format 'preference'" if wants_pairs else "use another format, or a loss on pairs"
    return [Problem("data", f"must have {needs}, for {label(algorithm.loss)}, {got}; {use}.")]


def _kl_in_brought_rewards(algorithm: Algorithm, data: DataSettings | None) -> list[Problem]:
    is_brought = "token_reward" in declared(data, "out_keys")
    if not is_brought or algorithm.kl is None or algorithm.kl.placement != "reward":
        return []
    text = "must not be 'reward' where [data] has token_reward; choose placement 'loss' or 'advantage'."
    return [Problem("algorithm.kl", text, "placement")]


def _labels_are_read(algorithm: Algorithm, data: DataSettings | None) -> list[Problem]:
    if data is None or not is_data(type(data)):
        return []
    read = {key for actor in dataflow_nodes(algorithm, [], (), data) for key in actor.reads}
    return [
        Problem("data", f"has {key!r}, which no component reads; choose a loss or a filter that reads it.")
        for key in data.out_keys
        if key not in read and key != "margin"
    ]


def _held_out_like_data(data: DataSettings | None, evaluation: Evaluation | None) -> list[Problem]:
    held_out = None if evaluation is None else evaluation.data
    if data is None or held_out is None or not (is_data(type(data)) and is_data(type(held_out))):
        return []
    if data.is_paired == held_out.is_paired and set(data.out_keys) <= set(held_out.out_keys):
        return []
    return [Problem("evaluation.data", "must have the same keys as [data]; give both the same format.")]


DATA_CHECKS: tuple[Callable[..., list[Problem]], ...] = (
    _prompts_or_data,
    _sampling,
    _keys_of_sampling,
    _alerts,
    _held_out,
    _source_kinds,
    _pairs,
    _kl_in_brought_rewards,
    _labels_are_read,
    _held_out_like_data,
)
