"""A head tied to the embedding across pipeline stages: two copies of one parameter, with one gradient."""

from __future__ import annotations

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titanrl.engine.build import Model

__all__ = ["share_gradient"]


@torch.no_grad()
def share_gradient(model: Model, pp_group: dist.ProcessGroup | None) -> torch.nn.Parameter | None:
    """Gives both copies of a tied matrix the sum of their gradients; first and last stage take part.

    Both are sharded alike over the other mesh axes, so shards are exchanged. The copies begin equal and the
    sums are the same bit for bit, so equal steps keep the copies equal.

    Returns:
        The last stage's copy, which is no parameter of its own and must not count in a norm; None elsewhere.
    """
    if pp_group is None or not model.tied or not (model.is_first or model.is_last):
        return None
    weight: torch.nn.Parameter = (model.parts[0].tok_embeddings if model.is_first else model.head).weight
    gradient = weight.grad
    assert gradient is not None
    mine = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    theirs = torch.empty_like(mine)
    peer = dist.get_world_size(pp_group) - 1 if model.is_first else 0
    exchange = [
        dist.P2POp(dist.isend, mine, group=pp_group, group_peer=peer),
        dist.P2POp(dist.irecv, theirs, group=pp_group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    mine.add_(theirs)
    return None if model.is_first else weight
