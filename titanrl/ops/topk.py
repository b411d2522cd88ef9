"""Top-k token ids of rows of logits, also sharded over the vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["TopK", "topk"]


class TopK(NamedTuple):
    """The k largest logits of each row in descending order, the same on every rank."""

    ids: torch.Tensor
    """[C, K] int64 token ids."""
    logits: torch.Tensor
    """[C, K] float32."""


def topk(logits: torch.Tensor, k: int, *, group: Any = None, vocab_start: int = 0) -> TopK:
    """Returns the ``k`` largest logits of each row and their token ids.

    If the vocabulary is sharded, each rank contributes the top k of its shard: one collective of k numbers
    per rank and row, never one of V.

    Args:
        logits: [C, V/tp] any float, columns ``vocab_start ...`` of the vocabulary, sharded on V over
            ``group``; shards may differ in width.
        k: >= 0, at most V.
        group: of the ranks that shard the vocabulary; None: not sharded.
        vocab_start: first vocabulary entry of this rank.
    """
    local = logits.topk(min(k, logits.shape[-1]), dim=-1)
    values, ids = local.values.float(), local.indices + vocab_start
    if group is None:
        return TopK(ids, values)
    # Both in one collective: float64 represents every float32 and every token id exactly.
    own = torch.stack([values.double(), ids.double()])
    own = torch.nn.functional.pad(own, (0, k - own.shape[-1]), value=-torch.inf)
    parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, own, group=group)
    values, ids = torch.cat(parts, dim=-1)
    best = values.topk(k, dim=-1)
    return TopK(ids.gather(-1, best.indices).long(), best.values.float())
