"""Collectives of the training loop: gather the global batch, shard it over ranks, broadcast objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from tensordict import TensorDict

from titanrl.engine.bins import balance
from titanrl.errors import TrainingError
from titanrl.ops.padding import trim
from titanrl.ops.prefix import group_tokens
from titanrl.runtime import stop

__all__ = [
    "abandon_together",
    "any_rank",
    "broadcast_object",
    "broadcast_from_leader",
    "gather",
    "gather_objects",
    "shard_batch",
    "all_reduce_sums",
]

T = TypeVar("T")


def gather(batch: TensorDict, group: dist.ProcessGroup | None, degree: int) -> TensorDict:
    """Returns the rows of all data-parallel ranks in the order of row_id, without texts.

    The order does not depend on the number of ranks or on which rank had which rows.

    Args:
        batch: this rank's rows, CPU tensors; every rank holds the same keys, lengths may differ.
        group: of the data-parallel ranks.
        degree: number of data-parallel ranks.
    """
    batch = batch.select(*batch.keys(include_nested=True, leaves_only=True))  # Tensors alone.
    if degree == 1:
        return batch
    size = torch.tensor([batch.shape[0], batch["loss_mask"].shape[1]])
    sizes = [torch.empty_like(size) for _ in range(degree)]
    dist.all_gather(sizes, size, group=group)
    counts, length = [int(s[0]) for s in sizes], max(int(s[1]) for s in sizes)
    batch, rows = trim(batch, length), max(counts)
    columns: dict[Any, torch.Tensor] = {}
    for key in sorted(batch.keys(include_nested=True, leaves_only=True), key=str):
        value = batch[key]
        # Not every version of gloo sends bool and int8: bytes always pass.
        flat = value.contiguous().reshape(value.shape[0], -1).view(torch.uint8)
        padded = flat.new_zeros((rows, flat.shape[1]))
        padded[: flat.shape[0]] = flat
        parts = [torch.empty_like(padded) for _ in range(degree)]
        dist.all_gather(parts, padded, group=group)
        global_value = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        columns[key] = global_value.view(value.dtype).reshape(sum(counts), *value.shape[1:])
    batch = TensorDict(columns, batch_size=[sum(counts)])
    return batch[batch["row_id"].argsort(stable=True)]


def gather_objects(items: Sequence[Any], group: dist.ProcessGroup | None, degree: int) -> list[Any]:
    """Returns the items of all ranks in rank order; for small objects."""
    if degree == 1:
        return list(items)
    parts: list[Any] = [None] * degree
    dist.all_gather_object(parts, list(items), group=group)
    return [item for part in parts for item in part]


def all_reduce_sums(
    counts: Mapping[str, float], group: dist.ProcessGroup | None, degree: int
) -> dict[str, float]:
    """Returns the sum of each count over all ranks; every rank holds the same names."""
    parts = gather_objects([counts], group, degree)
    return {name: sum(part[name] for part in parts) for name in counts}


def any_rank(flag: bool) -> bool:
    """Returns whether a flag is set on at least one rank, on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return flag
    flags = torch.tensor([int(flag)])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item())


def abandon_together(work: Callable[[], T]) -> T:
    """Returns the result of ``work``, unless a request to stop abandoned it on one of the ranks.

    Args:
        work: holds an ``abandonable`` block.

    Raises:
        StopRequested: on every rank.
    """
    if not stop.is_listening():
        return work()
    results = []
    with suppress(stop.StopRequested):
        results.append(work())
    if any_rank(not results):
        raise stop.StopRequested(stop.NOTHING)
    return results[0]


def broadcast_object(value: Any) -> Any:
    """Returns the first rank's ``value`` on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    objects = [value]
    dist.broadcast_object_list(objects, src=0)
    return objects[0]


def broadcast_from_leader(groups: Sequence[dist.ProcessGroup], compute: Callable[[], T]) -> T:
    """Returns on every rank the result that ``compute`` has on the first of the ranks with the same rows.

    So a server gets each request once, and random results and timeouts are the same on all of them.

    Args:
        groups: one group per mesh axis of the ranks with the same rows; empty: this rank has rows of its own.
        compute: returns a small object.

    Raises:
        TrainingError: ``compute`` raised on the first rank, which raises the original error.
    """
    if not groups:
        return compute()
    result, error = None, None
    if all(dist.get_rank(group) == 0 for group in groups):
        try:
            result = compute()
        except Exception as raised:
            error = raised
    objects: list[Any] = [(result, None if error is None else f"{type(error).__name__}: {error}")]
    for group in groups:
        dist.broadcast_object_list(objects, group=group, group_src=0)
    if error is not None:
        raise error
    result, reason = objects[0]
    if reason is not None:
        raise TrainingError(reason)
    return result  # type: ignore[no-any-return]


def shard_batch(batch: TensorDict, rank: int, degree: int) -> TensorDict:
    """Returns the rows of ``batch`` that ``rank`` trains on: complete groups, balanced by distinct tokens."""
    if degree == 1:
        return batch
    rows, tokens = group_tokens(batch)
    groups = [rows[group] for group in balance(tokens, degree)[rank]]
    return batch[torch.cat(groups).sort().values if groups else torch.zeros(0, dtype=torch.int64)]
