"""A sharded tensor put together on every rank, with little memory beside the whole."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

__all__ = ["gather"]

STAGED_SHARE = 8
"""Which part of a tensor travels at a time."""
STAGED_BYTES = (2**20, 2**26)
"""Least and most of it: one collective for a small tensor, messages that fill a fast link for a large one."""


@torch.no_grad()
def gather(value: DTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns the full tensor on every rank of its mesh; a collective. What all ranks hold isn't copied.

    ``full_tensor`` holds several copies: what came, its pieces side by side, and another for each further
    axis of the mesh. Here slices of all ranks' shards travel through a buffer of an eighth of the tensor and
    are copied to where they belong: eight collectives at most for each axis of the mesh, up to 512 MiB. An
    outer axis comes first, as the next one then carries its result too and is the faster link.

    Args:
        value: sharded in any way, unevenly too. dtype: of what travels, if any does; None: as it is.
    """
    mesh = value.device_mesh
    axes = [
        axis for axis in range(mesh.ndim) if mesh.size(axis) > 1 and value.placements[axis] != Replicate()
    ]
    local = value.to_local()
    if not axes:
        return local
    sizes = tuple(mesh.size(axis) for axis in axes)
    places = _places(value.shape, sizes, tuple(value.placements[axis] for axis in axes))
    slot = [max(place[dim].stop - place[dim].start for place in places) for dim in range(value.ndim)]
    full = local.new_empty(value.shape, dtype=dtype)
    staged = min(max(full.nbytes // STAGED_SHARE, STAGED_BYTES[0]), STAGED_BYTES[1])
    # Whole rows where there are enough of them: they are copied fastest.
    dim = next((dim for dim, size in enumerate(slot) if size * staged >= full.nbytes), slot.index(max(slot)))
    length = slot[dim]
    row = len(places) * prod(slot) // length * full.element_size()
    slot[dim] = step = min(max(staged // row, 1), length)
    counts = [prod(sizes[:level]) for level in range(len(sizes) + 1)]
    buffers = [local.new_empty((count, *slot), dtype=full.dtype) for count in counts]
    for start in range(0, length, step):
        piece = _cut(local, dim, start, step)
        buffers[0][0][_corner(piece)].copy_(piece)
        for axis, mine, everyones in zip(axes, buffers, buffers[1:], strict=False):
            dist.all_gather_single(everyones, mine, group=mesh.get_group(axis))
        for place, sent in zip(places, buffers[-1], strict=True):
            target = _cut(full[place], dim, start, step)
            target.copy_(sent[_corner(target)])
    return full


def _cut(tensor: torch.Tensor, dim: int, start: int, step: int) -> torch.Tensor:
    """Returns what of the tensor travels now: it may have less than others, or nothing."""
    start = min(start, tensor.size(dim))
    return tensor.narrow(dim, start, min(step, tensor.size(dim) - start))


def _corner(tensor: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(size) for size in tensor.shape)


@lru_cache(maxsize=1024)
def _places(
    shape: torch.Size, sizes: tuple[int, ...], placements: tuple[Placement, ...]
) -> list[tuple[slice, ...]]:
    """Returns where each rank's shard lies in the full tensor, the last axis counting slowest."""
    return [
        _place(shape, sizes, placements, backwards[::-1]) for backwards in product(*map(range, sizes[::-1]))
    ]


def _place(
    shape: torch.Size, sizes: tuple[int, ...], placements: tuple[Placement, ...], rank: tuple[int, ...]
) -> tuple[slice, ...]:
    """Returns the shard of one rank, given by its number on each axis.

    torch 2.13's own function errs where FSDP splits what tensor parallelism has split unevenly.
    """
    place = [range(size) for size in shape]
    # FSDP comes last, though its axis is the first: it splits the others' shards, and is called strided then.
    for axis in sorted(range(len(sizes)), key=lambda axis: _is_strided(placements[axis])):
        dim: int = placements[axis].dim  # type: ignore[attr-defined]
        size = -(-len(place[dim]) // sizes[axis])
        place[dim] = place[dim][rank[axis] * size : (rank[axis] + 1) * size]
    return tuple(slice(part.start, part.stop) for part in place)


def _is_strided(placement: Placement) -> bool:
    return getattr(placement, "split_factor", 1) > 1
