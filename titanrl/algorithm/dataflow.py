"""The dataflow of a step: which batch keys each component reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from titanrl.algorithm.table import Algorithm
from titanrl.errors import Problem, closest_matches, did_you_mean
from titanrl.protocols import DataSettings, PolicyLoss
from titanrl.protocols.batch import KEYS, BatchKey, Stage, key_name
from titanrl.registry import declared, kind_of, name_of

__all__ = ["Node", "check_dataflow", "dataflow_nodes", "label", "out_keys", "scored_keys"]

ROLLOUT_KEYS: tuple[BatchKey, ...] = (
    "input_ids",
    "labels",
    "loss_mask",
    "sampler_logprob",
    "policy_version",
    "policy_version_token",
    "current_version",
    "group_id",
    "row_id",
    "prompt_id",
    "finish_reason",
    ("text", "prompt"),
    ("text", "conversation"),
    ("text", "response"),
    ("text", "answer"),
    ("text", "columns"),
    ("text", "source"),
)
"""Keys that stage `sample` writes in every online run."""

ENVIRONMENT_KEYS: tuple[BatchKey, ...] = (
    "rollout_id",
    "episode_id",
    "turn_id",
    "agent_id",
    "state_id",
    "step_reward",
    "num_turns",
    "input_length",
    ("text", "transcript"),
    ("text", "outcome"),
)
"""Keys that stage `sample` also writes where rollouts run in an environment."""

EXAMPLE_KEYS: tuple[BatchKey, ...] = ("input_ids", "labels", "loss_mask", "group_id", "row_id")
"""Keys that every source of offline data writes in place of stage `sample`; its out_keys are added."""

DATA_KEYS: tuple[BatchKey, ...] = ("reward", "margin", "token_reward")
"""Keys that only the data can provide in an offline run."""

POLICY_KEYS = ("old_logprob", "old_entropy", "sum_pi_squared")
"""Keys that one scoring pass of the policy can write; each is written only when a component reads it."""

TEACHER_KEYS: tuple[BatchKey, ...] = ("teacher_logprob", "candidate_ids", "candidate_logprob")
"""Keys that one scoring pass of the teacher can write; each is written only when a component reads it."""

UNUSED_ROLE = {
    "reference": "is read by no component; remove the table, or add [algorithm.kl].",
    "teacher": "is read by no component; remove the table, or choose loss 'topk_distill' or advantage "
    "'teacher_kl'.",
    "critic": "is read by no component; remove the table, or choose an [algorithm.advantage] that reads "
    "values, such as 'gae'.",
}
"""Role -> message for a role whose keys no component reads."""

TEXT_REMEDY = (
    "which only rewards can read: texts remain in the process that sampled them; compute a number "
    "from it in a [[reward]] or a source, declare it with titanrl.protocols.register_key, and read that key."
)

SCALING = "reward scaling"
"""Name of the node that rewrites the rewards for everything after the filters."""

BYPASS_MODE = "bypass mode"
"""Name of the node that writes old_logprob when the rollout log-probs are the old log-probs."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the dataflow: a component in one stage, or a part of the loop itself."""

    stage: Stage
    name: str
    table: str
    """Table that configures the node; empty for parts of the loop."""
    reads: tuple[BatchKey, ...] = ()
    writes: tuple[BatchKey, ...] = ()


def out_keys(component: Any) -> tuple[str, ...]:
    """Returns the batch keys that a source, sampler or reward adds to those of its stage."""
    return tuple(declared(component, "out_keys"))


def _reward_keys(name: str, reward: Any) -> tuple[BatchKey, ...]:
    """Returns the keys that a reward labelled ``name`` writes under ``rewards`` and ``token_rewards``."""
    outputs = tuple(("rewards", f"{name}.{output}") for output in declared(reward, "outputs"))
    per_token = (("token_rewards", name),) if declared(reward, "per_token") else ()
    return (("rewards", name), *outputs, *per_token)


def label(component: Any) -> str:
    """Returns the name of a component in messages: ``loss 'dpo'``."""
    return f"{kind_of(component)} {name_of(component)!r}"


def dataflow_nodes(
    algorithm: Algorithm,
    rewards: Sequence[tuple[str, Any]],
    roles: Iterable[str] = (),
    data: DataSettings | None = None,
    critic: PolicyLoss | None = None,
    *,
    prompts: Any = None,
    sampler: Any = None,
    in_environment: bool = False,
) -> tuple[Node, ...]:
    """Returns every node of a step in execution order.

    Args:
        algorithm: the [algorithm] table.
        rewards: (label, component) of each [[reward]], in order.
        roles: tables of the frozen models that exist: ``reference``, ``teacher``.
        data: source of offline data, which rewards do not score; None: rows are sampled.
        critic: loss of the critic; None: no critic.
        prompts: source of the prompts; None: offline.
        sampler: settings of the sampler; None: offline.
        in_environment: whether rollouts run in an [environment].
    """
    if data is None:
        added: tuple[BatchKey, ...] = (*out_keys(prompts), *out_keys(sampler))
        added += tuple(key for key in ENVIRONMENT_KEYS if in_environment and key not in added)
        rows = Node("sample", "sampler", "sampler", (), (*ROLLOUT_KEYS, *added))
    else:
        rewards = ()
        rows = Node("sample", label(data), "data", (), (*EXAMPLE_KEYS, *out_keys(data)))
    later = [*_estimate(algorithm, rows.writes), *_update(algorithm)]
    if critic is not None:
        reads = ("loss_mask", "loss_weight", *_in_keys(critic))
        later.append(Node("update", f"critic's {label(critic)}", "critic", reads))
    wanted = {key for node in later for key in node.reads} | _optional(algorithm)
    score = [
        Node(
            "score",
            label(reward),
            f"reward.{i}",
            _in_keys(reward),
            (*_reward_keys(name, reward), *out_keys(reward)),
        )
        for i, (name, reward) in enumerate(rewards)
    ]
    if rewards:
        parts = tuple(("rewards", name) for name, _ in rewards)
        score.append(Node("score", "weighted sum", "", parts, ("reward",)))
    if algorithm.old_logprob == "sampler" and data is None:
        score.append(Node("score", BYPASS_MODE, "algorithm", ("sampler_logprob",), ("old_logprob",)))
        wanted.discard("old_logprob")
    if policy := tuple(key for key in POLICY_KEYS if key in wanted):
        score.append(Node("score", "policy", "model", ("input_ids", "labels"), policy))
    if "reference" in roles:
        score.append(Node("score", "reference", "reference", ("input_ids", "labels"), ("ref_logprob",)))
        if "reference_point" in wanted:
            reads = ("input_ids", "labels", "loss_mask")
            score.append(Node("score", "reference point", "reference", reads, ("reference_point",)))
    if "teacher" in roles:
        writes = tuple(key for key in TEACHER_KEYS if key in wanted and key not in rows.writes)
        score.append(Node("score", "teacher", "teacher", ("input_ids", "labels"), writes))
    if critic is not None:
        values = ("value", *["final_value"][: "final_value" in wanted])
        score.append(Node("score", "critic", "critic", ("input_ids", "labels", "loss_mask"), values))
    sample = [rows]
    if "baseline_reward" in wanted and data is None:
        sample.append(Node("sample", "scored greedy responses", "sampler", (), ("baseline_reward",)))
    return (*sample, *score, *later)


def check_dataflow(nodes: Sequence[Node]) -> list[Problem]:
    """Returns the problems of a dataflow.

    These are keys that are read before they are written, unregistered keys, texts that are read outside the
    rewards, and roles whose keys no component reads.
    """
    problems: list[Problem] = []
    written: set[BatchKey] = set()
    for node in nodes:
        for key in node.reads:
            if _is_text(key) and node.stage != "score":
                problems.append(Problem(node.table, f"{node.name} reads {key_name(key)!r}, {TEXT_REMEDY}"))
            elif key not in written:
                text = f"{node.name} reads {key_name(key)!r}, which no stage writes{_remedy(key, nodes)}"
                problems.append(Problem(node.table, text))
        written.update(node.writes)
        problems += [
            _unregistered(node, key) for key in node.writes if isinstance(key, str) and key not in KEYS
        ]
    for role, text in UNUSED_ROLE.items():
        # The critic's own loss does not count: it alone does not require a critic.
        read = {key for node in nodes for key in node.reads if node.table != role}
        problems += [
            Problem(role, text)
            for node in nodes
            if node.table == role and node.stage == "score" and not read.intersection(node.writes)
        ]
    return problems


def _is_text(key: BatchKey) -> bool:
    """Returns whether a key holds Python objects, which remain in the process that sampled them."""
    return key[0] == "text" or (key in KEYS and KEYS[key].dtype == "text")


def _unregistered(node: Node, key: str) -> Problem:
    hint = did_you_mean(key, [known for known in KEYS if isinstance(known, str)]) or ";"
    text = f"{node.name} writes {key!r}, which is no key of the batch{hint}"
    return Problem(node.table, f"{text} call titanrl.protocols.register_key.")


def scored_keys(nodes: Sequence[Node], optimizer_steps: int) -> tuple[frozenset[str], bool]:
    """Returns the keys that models compute, and whether the update may compute ``old_logprob`` itself.

    It may if a batch is one optimizer step and only the update reads ``old_logprob``: the forward pass of the
    update then computes the same numbers. In a given step, this also requires that the weights being trained
    sampled all tokens of the rollouts. In bypass mode, the rollout log-probs are the old log-probs, and
    neither is needed.

    Args:
        nodes: nodes of the step.
        optimizer_steps: optimizer steps per batch.
    """
    early = {key for node in nodes for key in node.reads if node.stage != "update"}
    may_defer = optimizer_steps == 1 and "old_logprob" not in early
    may_defer = may_defer and all(node.name != BYPASS_MODE for node in nodes)
    computed = {key for node in nodes if node.table in ("model", *UNUSED_ROLE) for key in node.writes}
    return frozenset(map(str, computed)), may_defer


def _estimate(algorithm: Algorithm, row_keys: Sequence[BatchKey]) -> list[Node]:
    """Returns the nodes of stage `estimate`.

    Args:
        algorithm: the [algorithm] table.
        row_keys: keys that stage `sample` writes.
    """
    kl, result = algorithm.kl, []
    for i, row_filter in enumerate(algorithm.filter):
        result.append(Node("estimate", label(row_filter), f"algorithm.filter.{i}", _in_keys(row_filter)))
    if algorithm.pairs_responses and "sampler_logprob" in row_keys:
        reads: tuple[BatchKey, ...] = ("reward", "group_id")
        result.append(Node("estimate", f"pairs for {label(algorithm.loss)}", "algorithm.loss", reads))
    if algorithm.reward_scaling is not None:
        result.append(Node("estimate", SCALING, "algorithm.reward_scaling", ("reward",), ("reward",)))
    reads_token_reward = algorithm.advantage is not None and "token_reward" in _in_keys(algorithm.advantage)
    reads_token_reward = reads_token_reward or "token_reward" in _in_keys(algorithm.loss)
    in_reward = kl is not None and kl.placement == "reward"
    if "token_reward" not in row_keys and (reads_token_reward or in_reward):
        kl_keys = ("old_logprob", "ref_logprob") if in_reward else ()
        name = f"{label(kl.estimator)} in the reward" if kl is not None and in_reward else "reward placement"
        reads = ("reward", "loss_mask", *kl_keys)
        result.append(Node("estimate", name, "algorithm.kl" if in_reward else "", reads, ("token_reward",)))
    if algorithm.advantage is not None:
        reads = _in_keys(algorithm.advantage)
        writes = ("advantage", "returns")
        result.append(Node("estimate", label(algorithm.advantage), "algorithm.advantage", reads, writes))
    if kl is not None and kl.placement == "advantage":
        reads = ("advantage", "old_logprob", "ref_logprob")
        name = f"{label(kl.estimator)} in the advantage"
        result.append(Node("estimate", name, "algorithm.kl", reads, ("advantage",)))
    for i, correction in enumerate(algorithm.correction):
        writes = ("correction_weight", "keep")
        table = f"algorithm.correction.{i}"
        result.append(Node("estimate", label(correction), table, _in_keys(correction), writes))
    return result


def _update(algorithm: Algorithm) -> list[Node]:
    keep = ("keep",) if algorithm.denominator == "kept" else ()
    reads: tuple[BatchKey, ...] = ("loss_mask", "group_id", *keep)
    result = [Node("weigh", label(algorithm.aggregation), "algorithm.aggregation", reads, ("loss_weight",))]
    result.append(Node("update", label(algorithm.loss), "algorithm.loss", _in_keys(algorithm.loss)))
    kl = algorithm.kl
    if kl is not None and kl.placement == "loss":
        reads = ("ref_logprob", "old_logprob") if kl.importance_weight else ("ref_logprob",)
        result.append(Node("update", f"{label(kl.estimator)} in the loss", "algorithm.kl", reads))
    weights = ("loss_weight", *(("correction_weight",) if algorithm.correction else ()))
    result.append(Node("update", "objective", "", ("loss_mask", *weights)))
    return result


def _optional(algorithm: Algorithm) -> set[BatchKey]:
    """Returns the keys that components read only if the batch has them."""
    components = (algorithm.advantage, algorithm.loss, *algorithm.filter, *algorithm.correction)
    return {key for component in components for key in declared(component, "optional_keys")}


def _in_keys(component: Any) -> tuple[BatchKey, ...]:
    return tuple(declared(component, "in_keys"))


def _remedy(key: BatchKey, nodes: Sequence[Node]) -> str:
    """Returns the end of the message: which table or component would write the key."""
    if any(key in node.writes for node in nodes):
        return " before it; order the tables so that the writer comes first."
    if key in ("ref_logprob", "reference_point"):
        return "; add a [reference] table."
    if key in TEACHER_KEYS:
        return "; add a [teacher] table."
    if key == "baseline_reward":
        return "; use [prompts], for which greedy responses can be sampled."
    if key in ("value", "final_value"):
        return "; add a [critic] table."
    offline = next((node for node in nodes if node.table == "data"), None)
    if offline is not None and (key in DATA_KEYS or key in ROLLOUT_KEYS):
        provided = ", ".join(map(key_name, offline.writes))
        return (
            f"; choose a [data] format that provides it (this one provides {provided}), or another component."
        )
    if key == "reward" or (isinstance(key, tuple) and key[0] == "rewards" and len(key) == 2):
        written = [name for node in nodes for name in node.writes]
        labels = [name[1] for name in written if isinstance(name, tuple) and name[0] == "rewards"]
        wanted = f" labelled {key[1]!r}" if isinstance(key, tuple) else ""
        hint = did_you_mean(key[1], labels) if isinstance(key, tuple) else ""
        return f"{hint or ';'} add a [[reward]]{wanted}."
    if key in ("advantage", "returns"):
        return "; add an [algorithm.advantage] table."
    if key in ("keep", "correction_weight"):
        return "; add an [[algorithm.correction]]."
    if key in ENVIRONMENT_KEYS:
        return "; add an [environment], whose rollouts write it, or choose another component."
    if key == "token_reward":
        return "; add an [algorithm.advantage] that reads it."
    if key in KEYS:
        return "; add a source, sampler or reward that has it in out_keys, or choose another component."
    close = closest_matches(key_name(key), [key_name(known) for known in KEYS])
    return f"; did you mean {close[0]!r}?" if close else "; it is no key of the batch."
