"""The loop's only collectives: local rows -> the global batch on every rank, and back to a rank's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from tensordict import TensorDict

from titanrl.engine.bins import balance
from titanrl.errors import TrainingError
from titanrl.ops.padding import trim
from titanrl.ops.prefix import group_tokens

__all__ = [
    "broadcast_object",
    "broadcast_from_leader",
    "gather",
    "gather_objects",
    "shard_batch",
    "all_reduce_sums",
]

T = TypeVar("T")


def gather(batch: TensorDict, group: dist.ProcessGroup | None, degree: int) -> TensorDict:
    """Returns the rows of all ``degree`` data-parallel ranks in the order of row_id; texts are left out.

    So the order is the same for every number of ranks, whichever rank had which rows.

    Args:
        batch: this rank's rows, CPU tensors; every rank holds the same keys, lengths may differ.
    """
    batch = batch.select(*batch.keys(include_nested=True, leaves_only=True))  # Tensors alone.
    if degree == 1:
        return batch
    size = torch.tensor([batch.shape[0], batch["loss_mask"].shape[1]])
    sizes = [torch.empty_like(size) for _ in range(degree)]
    dist.all_gather(sizes, size, group=group)
    counts, length = [int(s[0]) for s in sizes], max(int(s[1]) for s in sizes)
    batch, rows = trim(batch, length), max(counts)
    gathered: dict[Any, torch.Tensor] = {}
    for key in sorted(batch.keys(include_nested=True, leaves_only=True), key=str):
        value = batch[key]
        # gloo moves neither bool nor int8 on every version: bytes always pass.
        flat = value.contiguous().reshape(value.shape[0], -1).view(torch.uint8)
        padded = flat.new_zeros((rows, flat.shape[1]))
        padded[: flat.shape[0]] = flat
        parts = [torch.empty_like(padded) for _ in range(degree)]
        dist.all_gather(parts, padded, group=group)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        gathered[key] = whole.view(value.dtype).reshape(sum(counts), *value.shape[1:])
    batch = TensorDict(gathered, batch_size=[sum(counts)])
    return batch[batch["row_id"].argsort(stable=True)]


def gather_objects(items: Sequence[Any], group: dist.ProcessGroup | None, degree: int) -> list[Any]:
    """Returns the items of all ranks in rank order; small things only."""
    if degree == 1:
        return list(items)
    parts: list[Any] = [None] * degree
    dist.all_gather_object(parts, list(items), group=group)
    return [item for part in parts for item in part]


def all_reduce_sums(
    counts: Mapping[str, float], group: dist.ProcessGroup | None, degree: int
) -> dict[str, float]:
    """Returns the sum of each count over all ranks, which hold the same names."""
    parts = gather_objects([counts], group, degree)
    return {name: sum(part[name] for part in parts) for name in counts}


def broadcast_object(value: Any) -> Any:
    """Returns the first rank's ``value`` on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def broadcast_from_leader(groups: Sequence[dist.ProcessGroup], ask: Callable[[], T]) -> T:
    """Returns on every rank what ``ask`` returns on the first of those that hold the same rows.

    So a server is asked once, and what is random or late is the same for all of them.

    Args:
        groups: over which these ranks reach each other, axis by axis; none: this rank has rows of its own.
        ask: returns something small.

    Raises:
        TrainingError: ``ask`` raised on the first rank, which raises that itself.
    """
    if not groups:
        return ask()
    found, error = None, None
    if all(dist.get_rank(group) == 0 for group in groups):
        try:
            found = ask()
        except Exception as raised:
            error = raised
    box: list[Any] = [(found, None if error is None else f"{type(error).__name__}: {error}")]
    for group in groups:
        dist.broadcast_object_list(box, group=group, group_src=0)
    if error is not None:
        raise error
    found, reason = box[0]
    if reason is not None:
        raise TrainingError(reason)
    return found  # type: ignore[no-any-return]


def shard_batch(batch: TensorDict, rank: int, degree: int) -> TensorDict:
    """Returns the rows of ``batch`` that ``rank`` trains on: whole groups, balanced by distinct tokens."""
    if degree == 1:
        return batch
    rows, tokens = group_tokens(batch)
    mine = [rows[group] for group in balance(tokens, degree)[rank]]
    return batch[torch.cat(mine).sort().values if mine else torch.zeros(0, dtype=torch.int64)]
