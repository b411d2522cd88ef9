"""Who the old policy is, and what the frozen models are for."""

from __future__ import annotations

from collections.abc import Callable

from titanrl.algorithm import Algorithm
from titanrl.dataflow import flows
from titanrl.errors import Problem
from titanrl.registry import name_of

__all__ = ["ROLE_CHECKS"]


def _two_policies(algorithm: Algorithm) -> list[Problem]:
    if algorithm.old_logprob == "recompute":
        return []
    remedy = "remove it, or set [algorithm] old_logprob = 'recompute'."
    problems = [
        Problem(
            f"algorithm.correction.{i}",
            "must not compare old_logprob with sampler_logprob where old_logprob = 'sampler' makes them one, "
            f"got {name_of(correction)!r}; {remedy}",
            "name",
        )
        for i, correction in enumerate(algorithm.correction)
        if {"old_logprob", "sampler_logprob"} <= set(getattr(correction, "in_keys", ()))
    ]
    if not any("old_logprob" in actor.reads for actor in flows(algorithm, ())):
        text = "must be 'recompute' where no component reads it, got 'sampler'; leave it out."
        problems.append(Problem("algorithm", text, "old_logprob"))
    return problems


ROLE_CHECKS: tuple[Callable[..., list[Problem]], ...] = (_two_policies,)
