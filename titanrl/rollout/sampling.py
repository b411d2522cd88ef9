"""Which rank samples which rows: dealt to engines by tokens, then to the ranks that go on with answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from titanrl.engine import collectives
from titanrl.engine.bins import balance

if TYPE_CHECKING:
    from titanrl.protocols import Completion, RolloutRequest
    from titanrl.rollout.context import RolloutContext

__all__ = ["shard_prompts", "generate"]


def shard_prompts(rows: Sequence[RolloutRequest], count: int, longest: int) -> list[list[int]]:
    """Returns the numbers of the rows in each of ``count`` shares: whole groups in order, balanced by tokens.

    A group weighs its prompt and one longest answer, as lengths of answers are not known yet: it lands in one
    place, however many are asked for.

    Args:
        longest: tokens of an answer.
    """
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.prompt_index, []).append(number)
    members = list(groups.values())
    tokens = [len(rows[numbers[0]].prompt_ids) + longest for numbers in members]
    return [
        sorted(number for group in share for number in members[group]) for share in balance(tokens, count)
    ]


def generate(
    host: RolloutContext,
    rows: Sequence[RolloutRequest],
    *,
    step: int,
    seed: int,
    temperature: float | None = None,
    greedy: bool = False,
) -> tuple[list[int], list[Completion]]:
    """Returns the numbers of the rows that this rank goes on with, and an answer for each; a collective.

    Data-parallel ranks go on with different rows. Where the ranks of an engine are others than those with
    equal rows, answers travel from who sampled them to who goes on with them.

    Args:
        rows: all rows, the same on every rank. step, seed, temperature, greedy: see Sampler.
    """
    engine, settings = host.engine, host.sampler_settings
    size = host.sampler.ranks_per_engine
    shares = shard_prompts(rows, engine.world_size // size, settings.max_response_tokens)
    mine = shares[engine.rank // size]
    samples = host.sampler.sample(
        [rows[number] for number in mine], step=step, seed=seed, temperature=temperature, greedy=greedy
    )
    if size == engine.tensor_parallel_degree and size * engine.dp_degree == engine.world_size:
        return mine, samples
    found = dict(collectives.gather_objects(list(zip(mine, samples, strict=True)), None, engine.world_size))
    kept = shard_prompts(rows, engine.dp_degree, settings.max_response_tokens)[engine.dp_rank]
    return kept, [found[number] for number in kept]
