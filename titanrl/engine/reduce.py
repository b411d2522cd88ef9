"""Sums of metrics over ranks, and results of the last pipeline stage on every stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from titanrl.algorithm.metrics import Sums
from titanrl.engine.mesh import Mesh

__all__ = ["from_last_stage", "reduce_sums"]

T = TypeVar("T")


def reduce_sums(parts: Sequence[dict[str, torch.Tensor]], mesh: Mesh) -> Sums:
    """Returns {name: (sum, count)} over all data-parallel ranks, the same on every rank.

    The device is synchronized once.

    Args:
        parts: {name: [2] float64} of each micro-batch, with the same names everywhere; empty on pipeline
            stages without a head.
        mesh: of the ranks.
    """
    result: Sums = {}
    if parts:
        names = sorted(parts[0])
        table = torch.stack([torch.stack([part[name] for part in parts]).sum(0) for name in names])
        if mesh.dp_group is not None:
            dist.all_reduce(table, group=mesh.dp_group)
        result = {name: (value, count) for name, (value, count) in zip(names, table.tolist(), strict=True)}
    return from_last_stage(result, mesh.pp_group)


def from_last_stage(value: T, pp_group: dist.ProcessGroup | None) -> T:
    """Returns the last pipeline stage's ``value`` on every stage; for small CPU objects."""
    if pp_group is None:
        return value
    objects = [value]
    dist.broadcast_object_list(objects, group=pp_group, group_src=dist.get_world_size(pp_group) - 1)
    return objects[0]
