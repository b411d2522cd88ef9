"""Checks of the old policy, the frozen models and the critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from titanrl.algorithm.dataflow import dataflow_nodes, label
from titanrl.algorithm.table import Algorithm
from titanrl.errors import Problem
from titanrl.registry import declared, name_of

if TYPE_CHECKING:
    from titanrl.config.tables import Critic, Loop, Reference, Teacher
    from titanrl.protocols import DataSettings

__all__ = ["ROLE_CHECKS"]


def _two_policies(algorithm: Algorithm, data: DataSettings | None) -> list[Problem]:
    if algorithm.old_logprob == "recompute":
        return []
    if data is not None:
        text = "must be 'recompute' with [data], got 'sampler'; offline data has no sampler."
        return [Problem("algorithm", text, "old_logprob")]
    remedy = "remove it, or set [algorithm] old_logprob = 'recompute'."
    problems = [
        Problem(
            f"algorithm.correction.{i}",
            "must not compare old_logprob with sampler_logprob where old_logprob = 'sampler' makes them one, "
            f"got {name_of(correction)!r}; {remedy}",
            "name",
        )
        for i, correction in enumerate(algorithm.correction)
        if {"old_logprob", "sampler_logprob"} <= set(declared(correction, "in_keys"))
    ]
    if not any("old_logprob" in actor.reads for actor in dataflow_nodes(algorithm, ())):
        text = "must be 'recompute' where no component reads it, got 'sampler'; leave it out."
        problems.append(Problem("algorithm", text, "old_logprob"))
    return problems


def _teacher_top_k(algorithm: Algorithm, teacher: Teacher | None, data: DataSettings | None) -> list[Problem]:
    if teacher is None:
        return []
    is_wanted = any(
        actor.table == "teacher" and "candidate_ids" in actor.writes
        for actor in dataflow_nodes(algorithm, (), ("teacher",), data)
    )
    if is_wanted == (teacher.top_k is not None):
        return []
    if is_wanted:
        reader = label(algorithm.loss)
        text = (
            f"is missing; {reader} reads the teacher's most probable tokens; give their number, such as 64."
        )
    else:
        text = f"must be left out where no component reads candidate_ids, got {teacher.top_k}."
    return [Problem("teacher", text, "top_k")]


def _cached_reference(
    algorithm: Algorithm, reference: Reference | None, data: DataSettings | None
) -> list[Problem]:
    if reference is None or reference.cache is None:
        return []
    if data is None:
        text = "must be left out with [prompts]; sampled responses are new in each step."
        return [Problem("reference", text, "cache")]
    if any("reference_point" in actor.reads for actor in dataflow_nodes(algorithm, (), ("reference",), data)):
        reader = label(algorithm.loss)
        text = f"must be left out for {reader}: its reference point is taken on new rows in each step."
        return [Problem("reference", text, "cache")]
    return []


def _shared_critic(critic: Critic | None) -> list[Problem]:
    """Returns a Problem for each key of [critic] that would be ignored."""
    if critic is None:
        return []
    if not critic.shared:
        text = f"is only used with shared = true, got {critic.coefficient}; leave it out."
        return [] if critic.coefficient is None else [Problem("critic", text, "coefficient")]
    reasons = {
        "path": (critic.path, "the critic is a head on the policy's backbone"),
        "warmup_steps": (critic.warmup_steps, "the policy's backbone changes while its head learns"),
    }
    problems = [
        Problem("critic", f"must be left out with shared = true, got {got!r}: {reason}.", key)
        for key, (got, reason) in reasons.items()
        if got
    ]
    return problems + [
        Problem(
            f"critic.{key}",
            f"must be left out with [critic] shared = true: the policy's own [{key}] also trains the "
            f"critic's head (to remove a base file's table: drop = ['critic.{key}']).",
        )
        for key in ("optimizer", "lr_scheduler")
        if getattr(critic, key) is not None
    ]


def _skipped_rows(algorithm: Algorithm, loop: Loop, critic: Critic | None) -> list[Problem]:
    if not loop.skip_zero_advantage:
        return []
    if not declared(algorithm.loss, "is_zero_without_advantage"):
        reason = f"{label(algorithm.loss)} has a gradient there or compares rows"
    elif algorithm.kl_in_loss is not None:
        reason = "the KL term in the loss needs them"
    elif algorithm.entropy is not None:
        reason = "the entropy bonus needs them"
    elif critic is not None and critic.shared:
        reason = "the critic on the policy's backbone learns from them"
    else:
        return []
    text = f"must be false here, got true: rows without advantage cannot be left out, since {reason}."
    return [Problem("loop", text, "skip_zero_advantage")]


ROLE_CHECKS: tuple[Callable[..., list[Problem]], ...] = (
    _two_policies,
    _teacher_top_k,
    _cached_reference,
    _shared_critic,
    _skipped_rows,
)
