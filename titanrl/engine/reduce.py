"""Metric sums added over the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from titanrl.engine.mesh import Mesh
from titanrl.metrics import Sums

__all__ = ["reduce_sums"]


def reduce_sums(sums: dict[str, torch.Tensor], mesh: Mesh) -> Sums:
    """Returns {name: (sum, count)} over all data-parallel ranks, the same on every rank; one device read.

    Args:
        sums: {name: [2] float64}, the same names on every rank that has a head; empty on other pipeline
            stages.
    """
    names = sorted(sums)
    result: Sums = {}
    if names:
        table = torch.stack([sums[name] for name in names])
        if mesh.dp_group is not None:
            dist.all_reduce(table, group=mesh.dp_group)
        result = {name: (value, count) for name, (value, count) in zip(names, table.tolist(), strict=True)}
    if mesh.pp_group is not None:
        box = [result]
        dist.broadcast_object_list(box, group=mesh.pp_group, group_src=dist.get_world_size(mesh.pp_group) - 1)
        result = box[0]
    return result
