"""A head tied to the embedding across pipeline stages: two copies of one parameter with one gradient."""

from __future__ import annotations

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titanrl.engine.model import Model

__all__ = ["share_gradient"]


@torch.no_grad()
def share_gradient(model: Model, pp_group: dist.ProcessGroup | None) -> torch.nn.Parameter | None:
    """Sums the gradients of both copies of a tied matrix on the first and the last stage.

    Both copies are sharded alike over the other mesh axes, so shards are exchanged. The copies start equal
    and the sums are equal bit for bit, so equal steps keep the copies equal.

    Args:
        model: its parts are the stages of this rank.
        pp_group: of its pipeline stages; None: no pipeline parallelism.

    Returns:
        The last stage's copy, which must not count in the gradient norm a second time; None elsewhere.
    """
    if pp_group is None or not model.tied or not (model.is_first or model.is_last):
        return None
    weight: torch.nn.Parameter = (model.parts[0].tok_embeddings if model.is_first else model.head).weight
    gradient = weight.grad
    assert gradient is not None
    own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    received = torch.empty_like(own)
    peer = dist.get_world_size(pp_group) - 1 if model.is_first else 0
    exchange = [
        dist.P2POp(dist.isend, own, group=pp_group, group_peer=peer),
        dist.P2POp(dist.irecv, received, group=pp_group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    own.add_(received)
    return None if model.is_first else weight
