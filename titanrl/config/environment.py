"""The [environment] table: an environment, and the limits of its rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from titanrl.errors import Problem
from titanrl.protocols import EnvironmentSettings
from titanrl.registry import Range, declared, name_of, validated
from titanrl.registry.decode import Component

if TYPE_CHECKING:
    from titanrl.algorithm.table import Algorithm
    from titanrl.protocols import SamplerSettings

__all__ = ["EnvironmentTable", "environment_problems", "reads_outcome"]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTable:
    """The environment of the rollouts: several requests to the policy, tools, and a reward of its own."""

    component: Annotated[EnvironmentSettings, Component("environment")]
    """The environment; its keys are in the same table."""
    max_turns: Annotated[int, Range("[1, inf)")] = 8
    """Largest number of requests to the policy in one rollout."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit of the environment itself in one rollout, without the time of the sampler, seconds. A
    rollout that exceeds it fails; the others go on."""
    concurrency: Annotated[int, Range("[1, inf)")] = 256
    """Rollouts that run at a time on each rank."""


def environment_problems(
    environment: EnvironmentTable | None,
    algorithm: Algorithm,
    sampler: SamplerSettings | None,
) -> list[Problem]:
    """Returns the problems of an [environment] with the other tables."""
    if environment is None:
        return []
    problems = []
    if sampler is None:
        problems.append(Problem("sampler", "is missing; an [environment] asks the policy through it."))
    if algorithm.pairs_responses:
        text = (
            f"must be absent with loss {name_of(algorithm.loss)!r}, which compares pairs of responses; a "
            "rollout may have several rows. Choose another loss, or remove the table."
        )
        problems.append(Problem("environment", text))
    if (size := getattr(sampler, "tensor_parallel_size", 1)) > 1:
        text = f"must be 1 with an [environment], whose ranks sample on their own, got {size}."
        problems.append(Problem("sampler", text, "tensor_parallel_size"))
    return problems


def reads_outcome(reward: Any) -> bool:
    """Returns whether a reward function reads the environment's result."""
    return ("text", "outcome") in declared(reward, "in_keys")
