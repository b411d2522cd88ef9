"""Distributed sampling: requests are sharded over the engines, completions over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from titanrl.engine import collectives
from titanrl.engine.bins import balance
from titanrl.errors import TrainingError
from titanrl.protocols import temperature_at
from titanrl.rollout.whole_stream import WholeStream
from titanrl.runtime.stop import abandonable

if TYPE_CHECKING:
    from titanrl.protocols import Completion, RolloutRequest
    from titanrl.rollout.context import RolloutContext
    from titanrl.rollout.environments.runner import Rollout

__all__ = ["generate", "generate_rollouts", "shard_prompts"]

T = TypeVar("T")


def shard_prompts(
    requests: Sequence[RolloutRequest], num_shards: int, max_response_tokens: int
) -> list[list[int]]:
    """Return the indices of the requests in each shard: whole groups in order, balanced by token count.

    The cost of a group is its prompt and one longest response, because response lengths are not known yet;
    so a prompt goes to the same shard for any number of samples.

    Args:
        requests: the requests of all ranks.
        num_shards: number of shards.
        max_response_tokens: longest response.
    """
    groups: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(request.prompt_index, []).append(index)
    members = list(groups.values())
    tokens = [len(requests[indices[0]].prompt_ids) + max_response_tokens for indices in members]
    return [
        sorted(index for group in shard for index in members[group]) for shard in balance(tokens, num_shards)
    ]


def generate(
    context: RolloutContext,
    requests: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
) -> tuple[list[int], list[Completion]]:
    """Return the indices of this rank's requests and their completions; a collective.

    Data-parallel ranks get different requests. Where engines span other ranks than those that share rows,
    completions are exchanged after sampling.

    Args:
        context: the policy and its sampler.
        requests: all requests, the same on every rank.
        step: the training step, part of the random seed.
        seed: the run's seed.
        temperature: divides the logits; None: that of ``step`` in the sampler's settings.
        greedy: take the most probable token.

    Raises:
        TrainingError: the sampler returned more or fewer responses than requests.
    """
    settings = context.sampler_settings
    if temperature is None and not greedy and hasattr(settings, "temperature_at"):
        temperature = temperature_at(settings, step)

    def sample(own: Sequence[RolloutRequest]) -> list[Completion]:
        completions = context.sampler.sample(
            own, step=step, seed=seed, temperature=temperature, greedy=greedy
        )
        if len(completions) != len(own):
            raise TrainingError(
                f"the sampler returned {len(completions)} responses to {len(own)} requests; it must return "
                "one response per request, in order."
            )
        return completions

    return _shared_out(context, requests, sample)


def generate_rollouts(
    context: RolloutContext,
    requests: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
) -> tuple[list[int], list[Rollout]]:
    """Return the indices of this rank's requests and their rollouts in the environment; a collective.

    See ``generate`` for the arguments.

    Raises:
        AssertionError: the context has no environment.
    """
    environment, sampler = context.environment, context.sampler
    assert environment is not None
    if temperature is None and not greedy:
        temperature = temperature_at(context.sampler_settings, step)
    open_stream = getattr(sampler, "stream", None) or partial(WholeStream, sampler, seed, step)

    def run(own: Sequence[RolloutRequest]) -> list[Rollout]:
        return environment.run(
            own,
            open_stream,
            step=step,
            seed=seed,
            temperature=None if greedy else temperature,
            version=sampler.version,
        )

    return _shared_out(context, requests, run)


def _shared_out(
    context: RolloutContext,
    requests: Sequence[RolloutRequest],
    produce: Callable[[Sequence[RolloutRequest]], list[T]],
) -> tuple[list[int], list[T]]:
    """Return the indices of this rank's requests, and what ``produce`` makes of each."""
    engine, settings = context.engine, context.sampler_settings
    size = context.sampler.ranks_per_engine
    shards = shard_prompts(requests, engine.world_size // size, settings.max_response_tokens)
    own = shards[engine.rank // size]
    own_requests = [requests[index] for index in own]

    def sample() -> list[T]:
        # With several ranks, the sampler decides which part of its work has no collectives.
        with abandonable() if engine.world_size == 1 else nullcontext():
            return produce(own_requests)

    results = collectives.abandon_together(sample)
    if size == engine.tensor_parallel_degree and size * engine.dp_degree == engine.world_size:
        return own, results
    sampled = list(zip(own, results, strict=True))
    by_index = dict(collectives.gather_objects(sampled, None, engine.world_size))
    local = shard_prompts(requests, engine.dp_degree, settings.max_response_tokens)[engine.dp_rank]
    return local, [by_index[index] for index in local]
