"""Gathers a sharded tensor on every rank with little memory besides the result."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

__all__ = ["gather"]

NUM_PIECES = 8
"""A tensor is sent in so many pieces, or fewer."""
PIECE_BYTES = (2**20, 2**26)
"""Smallest and largest piece: a small tensor needs one collective, a large one saturates a fast link."""


@torch.no_grad()
def gather(value: DTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns the full tensor on every rank of its mesh; a collective. A replicated tensor isn't copied.

    ``full_tensor`` holds several copies: the received shards, their concatenation, and another copy for each
    further mesh axis. Here slices of all ranks' shards are sent through a buffer of an eighth of the tensor
    and copied into the result: at most eight collectives per mesh axis for tensors up to 512 MiB. Outer axes
    come first, because the next axis then sends their result too and is the faster link.

    Args:
        value: sharded in any way, unevenly too.
        dtype: of the tensors that are sent and of the result; None: the value's own.
    """
    mesh = value.device_mesh
    axes = [
        axis for axis in range(mesh.ndim) if mesh.size(axis) > 1 and value.placements[axis] != Replicate()
    ]
    local = value.to_local()
    if not axes:
        return local
    sizes = tuple(mesh.size(axis) for axis in axes)
    regions = _regions(value.shape, sizes, tuple(value.placements[axis] for axis in axes))
    slot = [max(region[dim].stop - region[dim].start for region in regions) for dim in range(value.ndim)]
    full = local.new_empty(value.shape, dtype=dtype)
    piece_bytes = min(max(full.nbytes // NUM_PIECES, PIECE_BYTES[0]), PIECE_BYTES[1])
    # Pieces are complete rows where there are enough of them: they are copied fastest.
    dim = next(
        (dim for dim, size in enumerate(slot) if size * piece_bytes >= full.nbytes), slot.index(max(slot))
    )
    length = slot[dim]
    row = len(regions) * prod(slot) // length * full.element_size()
    slot[dim] = step = min(max(piece_bytes // row, 1), length)
    counts = [prod(sizes[:level]) for level in range(len(sizes) + 1)]
    buffers = [local.new_empty((count, *slot), dtype=full.dtype) for count in counts]
    for start in range(0, length, step):
        piece = _cut(local, dim, start, step)
        buffers[0][0][_corner(piece)].copy_(piece)
        for axis, local_piece, gathered in zip(axes, buffers, buffers[1:], strict=False):
            dist.all_gather_single(gathered, local_piece, group=mesh.get_group(axis))
        for region, received in zip(regions, buffers[-1], strict=True):
            target = _cut(full[region], dim, start, step)
            target.copy_(received[_corner(target)])
    return full


def _cut(tensor: torch.Tensor, dim: int, start: int, step: int) -> torch.Tensor:
    """Returns the slice of ``tensor`` in this piece, which may be smaller than others, or empty."""
    start = min(start, tensor.size(dim))
    return tensor.narrow(dim, start, min(step, tensor.size(dim) - start))


def _corner(tensor: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(size) for size in tensor.shape)


@lru_cache(maxsize=1024)
def _regions(
    shape: torch.Size, sizes: tuple[int, ...], placements: tuple[Placement, ...]
) -> list[tuple[slice, ...]]:
    """Returns the region of each rank's shard in the full tensor; the last axis varies slowest."""
    return [_region(shape, sizes, placements, reverse[::-1]) for reverse in product(*map(range, sizes[::-1]))]


def _region(
    shape: torch.Size, sizes: tuple[int, ...], placements: tuple[Placement, ...], rank: tuple[int, ...]
) -> tuple[slice, ...]:
    """Returns the region of the shard of one rank.

    torch 2.13's own function is wrong where FSDP shards what tensor parallelism has sharded unevenly.

    Args:
        shape: of the full tensor.
        sizes: of the mesh axes.
        placements: on each mesh axis.
        rank: coordinates on the mesh axes.
    """
    region = [range(size) for size in shape]
    # FSDP comes last although its axis is the first: it shards the others' shards, which is called strided.
    for axis in sorted(range(len(sizes)), key=lambda axis: _is_strided(placements[axis])):
        dim: int = placements[axis].dim  # type: ignore[attr-defined]
        size = -(-len(region[dim]) // sizes[axis])
        region[dim] = region[dim][rank[axis] * size : (rank[axis] + 1) * size]
    return tuple(slice(part.start, part.stop) for part in region)


def _is_strided(placement: Placement) -> bool:
    return getattr(placement, "split_factor", 1) > 1
