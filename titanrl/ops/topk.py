"""The likeliest token ids of rows of logits, whole or sharded over the vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["TopK", "topk"]


class TopK(NamedTuple):
    """The same on every rank; the largest first."""

    ids: torch.Tensor
    """[C, K] int64 token ids."""
    logits: torch.Tensor
    """[C, K] float32."""


def topk(logits: torch.Tensor, k: int, *, group: Any = None, vocab_start: int = 0) -> TopK:
    """Returns the ``k`` largest logits of each row and their token ids.

    Sharded over ``group``, each rank brings the largest of its slice, and the largest of those are taken:
    one collective of k numbers a rank and row, never one of V.

    Args:
        logits: [C, V/tp] any float, columns ``vocab_start ...`` of the vocabulary, sharded on V over
            ``group``; slices may differ in width. k: >= 0, at most V.
    """
    local = logits.topk(min(k, logits.shape[-1]), dim=-1)
    values, ids = local.values.float(), local.indices + vocab_start
    if group is None:
        return TopK(ids, values)
    # Both in one collective: float64 holds every float32 and every token id exactly.
    mine = torch.stack([values.double(), ids.double()])
    mine = torch.nn.functional.pad(mine, (0, k - mine.shape[-1]), value=-torch.inf)
    parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, mine, group=group)
    values, ids = torch.cat(parts, dim=-1)
    best = values.topk(k, dim=-1)
    return TopK(ids.gather(-1, best.indices).long(), best.values.float())
