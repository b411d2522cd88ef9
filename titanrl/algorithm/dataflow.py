"""Which component reads and writes which batch keys at which stage, known before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from titanrl.algorithm.table import Algorithm
from titanrl.errors import Problem, closest_matches, did_you_mean
from titanrl.protocols import DataSettings, PolicyLoss
from titanrl.protocols.batch import KEYS, Stage, key_name
from titanrl.registry import declared, kind_of, name_of

__all__ = ["Node", "check_dataflow", "dataflow_nodes", "label", "scored_keys"]

BatchKey = str | tuple[str, ...]

ROLLOUT_KEYS: tuple[BatchKey, ...] = (
    "input_ids", "labels", "loss_mask", "sampler_logprob", "policy_version", "policy_version_token",
    "group_id", "prompt_id", "finish_reason", ("text", "prompt"), ("text", "response"), ("text", "answer"),
    ("text", "columns"), ("text", "source"),
)  # fmt: skip
"""What stage `sample` writes in every run."""

EXAMPLE_KEYS: tuple[BatchKey, ...] = ("input_ids", "labels", "loss_mask", "group_id", "row_id")
"""What every source of fixed rows writes in the place of stage `sample`; its out_keys come on top."""

DATA_KEYS: tuple[BatchKey, ...] = ("reward", "margin", "token_reward")
"""What only the data can bring where no answers are sampled."""

POLICY_KEYS = ("old_logprob", "old_entropy", "sum_pi_squared")
"""What one scoring pass of the policy can write; each is written only when something reads it."""

TEACHER_KEYS: tuple[BatchKey, ...] = ("teacher_logprob", "candidate_ids", "candidate_logprob")
"""What one scoring pass of the teacher can write; each is written only when something reads it."""

UNUSED_ROLE = {
    "reference": "is read by no component; remove the table, or add [algorithm.kl].",
    "teacher": "is read by no component; remove the table, or choose loss 'topk_distill' or advantage "
    "'teacher_kl'.",
    "critic": "is read by no component; remove the table, or choose an [algorithm.advantage] that reads "
    "values, such as 'gae'.",
}
"""What is said of a role that nobody reads."""

SCALING = "reward scaling"
"""Who writes rewards anew for all that comes after the filters."""

BYPASS_MODE = "two-policy mode"
"""Who writes old_logprob where the sampler's log-probs are the old ones."""


@dataclass(frozen=True, slots=True)
class Node:
    """One actor of one stage: a component, or a part of the loop itself."""

    stage: Stage
    actor: str
    table: str
    """Table that the actor comes from; empty for parts of the loop."""
    reads: tuple[BatchKey, ...] = ()
    writes: tuple[BatchKey, ...] = ()


def label(component: Any) -> str:
    """Returns a component as messages name it: ``loss 'dpo'``."""
    return f"{kind_of(component)} {name_of(component)!r}"


def dataflow_nodes(
    algorithm: Algorithm,
    rewards: Sequence[tuple[str, Any]],
    roles: Iterable[str] = (),
    data: DataSettings | None = None,
    critic: PolicyLoss | None = None,
) -> tuple[Node, ...]:
    """Returns every actor of a step in the order in which they act.

    Args:
        rewards: (label, component) of each [[reward]], in order. roles: tables like ``reference``.
        data: source of fixed rows, which no reward judges; None: rows are sampled.
        critic: loss of the critic; None: no critic.
    """
    if data is None:
        rows = Node("sample", "sampler", "sampler", (), ROLLOUT_KEYS)
    else:
        rewards = ()
        rows = Node("sample", label(data), "data", (), (*EXAMPLE_KEYS, *declared(data, "out_keys")))
    later = [*_estimate(algorithm, rows.writes), *_update(algorithm)]
    if critic is not None:
        reads = ("loss_mask", "loss_weight", *_in_keys(critic))
        later.append(Node("update", f"critic's {label(critic)}", "critic", reads))
    wanted = {key for flow in later for key in flow.reads} | _optional(algorithm)
    score = [
        Node("score", label(reward), f"reward.{i}", _in_keys(reward), (("rewards", name),))
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
        sample.append(Node("sample", "greedy answers, scored", "sampler", (), ("baseline_reward",)))
    return (*sample, *score, *later)


def check_dataflow(flow: Sequence[Node]) -> list[Problem]:
    """Returns a Problem for each key that is read before it is written, and for a role that nobody reads."""
    problems: list[Problem] = []
    written: set[BatchKey] = set()
    for actor in flow:
        for key in actor.reads:
            if key not in written:
                text = f"{actor.actor} reads {key_name(key)!r}, which no stage writes{_remedy(key, flow)}"
                problems.append(Problem(actor.table, text))
        written.update(actor.writes)
    for role, text in UNUSED_ROLE.items():
        # A critic's own loss is no reason to have a critic.
        read = {key for actor in flow for key in actor.reads if actor.table != role}
        problems += [
            Problem(role, text)
            for actor in flow
            if actor.table == role and actor.stage == "score" and not read.intersection(actor.writes)
        ]
    return problems


def scored_keys(flow: Sequence[Node], optimizer_steps: int) -> tuple[frozenset[str], bool]:
    """Returns the keys that models must compute at stage `score`, and whether the update is on-policy.

    It is when a batch is one optimizer step and only the update reads ``old_logprob``: the log-probs of the
    update's own forward pass are the old ones then, and no scoring pass is needed for them. In two-policy
    mode the old ones are the sampler's, and it never is.
    """
    early = {key for actor in flow for key in actor.reads if actor.stage != "update"}
    on_policy = optimizer_steps == 1 and "old_logprob" not in early
    on_policy = on_policy and all(actor.actor != BYPASS_MODE for actor in flow)
    computed = {key for actor in flow if actor.table in ("model", *UNUSED_ROLE) for key in actor.writes}
    return frozenset(str(key) for key in computed if not (on_policy and key == "old_logprob")), on_policy


def _estimate(algorithm: Algorithm, given: Sequence[BatchKey]) -> list[Node]:
    """Returns the actors of stage `estimate`; ``given``: keys that the rows bring with them."""
    kl, result = algorithm.kl, []
    for i, chosen in enumerate(algorithm.filter):
        result.append(Node("estimate", label(chosen), f"algorithm.filter.{i}", _in_keys(chosen)))
    if algorithm.pairs_answers and "sampler_logprob" in given:
        reads: tuple[BatchKey, ...] = ("reward", "group_id")
        result.append(Node("estimate", f"pairs for {label(algorithm.loss)}", "algorithm.loss", reads))
    if algorithm.reward_scaling is not None:
        result.append(Node("estimate", SCALING, "algorithm.reward_scaling", ("reward",), ("reward",)))
    wants_tokens = algorithm.advantage is not None and "token_reward" in _in_keys(algorithm.advantage)
    wants_tokens = wants_tokens or "token_reward" in _in_keys(algorithm.loss)
    in_reward = kl is not None and kl.placement == "reward"
    if "token_reward" not in given and (wants_tokens or in_reward):
        anchors = ("old_logprob", "ref_logprob") if in_reward else ()
        actor = f"{label(kl.estimator)} in the reward" if kl is not None and in_reward else "reward placement"
        reads = ("reward", "loss_mask", *anchors)
        result.append(Node("estimate", actor, "algorithm.kl" if in_reward else "", reads, ("token_reward",)))
    if algorithm.advantage is not None:
        reads = _in_keys(algorithm.advantage)
        writes = ("advantage", "returns")
        result.append(Node("estimate", label(algorithm.advantage), "algorithm.advantage", reads, writes))
    if kl is not None and kl.placement == "advantage":
        reads = ("advantage", "old_logprob", "ref_logprob")
        actor = f"{label(kl.estimator)} in the advantage"
        result.append(Node("estimate", actor, "algorithm.kl", reads, ("advantage",)))
    for i, correction in enumerate(algorithm.correction):
        writes = ("correction_weight", "keep")
        table = f"algorithm.correction.{i}"
        result.append(Node("estimate", label(correction), table, _in_keys(correction), writes))
    return result


def _update(algorithm: Algorithm) -> list[Node]:
    kept = ("keep",) if algorithm.denominator == "kept" else ()
    reads: tuple[BatchKey, ...] = ("loss_mask", "group_id", *kept)
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
    """Returns what the components read where the batch has it."""
    components = (algorithm.advantage, algorithm.loss, *algorithm.filter, *algorithm.correction)
    return {key for component in components for key in declared(component, "optional_keys")}


def _in_keys(component: Any) -> tuple[BatchKey, ...]:
    return tuple(declared(component, "in_keys"))


def _remedy(key: BatchKey, flow: Sequence[Node]) -> str:
    """Returns the end of the sentence: what to add so that the key gets written."""
    if any(key in actor.writes for actor in flow):
        return " before it; order the tables so that the writer comes first."
    if key in ("ref_logprob", "reference_point"):
        return "; add a [reference] table."
    if key in TEACHER_KEYS:
        return "; add a [teacher] table."
    if key == "baseline_reward":
        return "; use [prompts], to which greedy answers can be sampled."
    if key in ("value", "final_value"):
        return "; add a [critic] table."
    fixed = next((actor for actor in flow if actor.table == "data"), None)
    if fixed is not None and (key in DATA_KEYS or key in ROLLOUT_KEYS):
        brought = ", ".join(map(key_name, fixed.writes))
        return f"; choose a [data] format that brings it (this one brings {brought}), or another component."
    if key == "reward" or (isinstance(key, tuple) and key[0] == "rewards" and len(key) == 2):
        written = [name for actor in flow for name in actor.writes]
        labels = [name[1] for name in written if isinstance(name, tuple) and name[0] == "rewards"]
        wanted = f" labelled {key[1]!r}" if isinstance(key, tuple) else ""
        hint = did_you_mean(key[1], labels) if isinstance(key, tuple) else ""
        return f"{hint or ';'} add a [[reward]]{wanted}."
    if key in ("advantage", "returns"):
        return "; add an [algorithm.advantage] table."
    if key in ("keep", "correction_weight"):
        return "; add an [[algorithm.correction]]."
    if key == "token_reward":
        return "; add an [algorithm.advantage] that reads it."
    if key in KEYS:
        return "; choose another component, the loop cannot compute it yet."
    close = closest_matches(key_name(key), [key_name(known) for known in KEYS])
    return f"; did you mean {close[0]!r}?" if close else "; it is no key of the batch."
