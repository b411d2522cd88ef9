"""Rows of a batch into micro-batches: which rows go together, and their tokens laid out as one line.

What rows of one group begin with alike is computed once: the prompt, whatever the number of answers, and the
turns that answers have in common. The result is exactly that of separate rows, and no padding token is ever
computed. Components don't know: what they get is [B, L].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict

from titanrl.engine.bins import pack
from titanrl.ops.prefix import group_tokens, prefix_order, trained_lengths

__all__ = ["MicroBatch", "dummy_micro_batch", "pack_sequences", "pad_to", "assign_micro_batches"]


class MicroBatch(NamedTuple):
    """What one forward and backward pass works on."""

    rows: torch.Tensor
    """[B] int64, row numbers in the batch it came from; empty for a blank."""
    tokens: torch.Tensor
    """[1, T] int64, distinct tokens of the rows."""
    positions: torch.Tensor
    """[1, T] int64, position of each in its row."""
    visible_until: torch.Tensor
    """[1, T] int64: token t is seen by tokens t .. visible_until[t] - 1, which all have it before them."""
    chosen: torch.Tensor
    """[S] int64, the token whose hidden state predicts each trained label, in row-major order; S >= 1."""
    place: torch.Tensor
    """[S] int64, b * L + t of each trained label."""
    batch: TensorDict
    """The rows' keys, [B] and [B, L], on the device; L is the longest row's last trained position + 1."""
    num_tokens: int
    """Distinct tokens of the rows, which a padded line has more than; 0 for a blank."""

    @property
    def num_trained(self) -> int:
        """Labels with loss_mask true."""
        return int(self.batch["loss_mask"].sum()) if len(self.rows) else 0


def assign_micro_batches(
    batch: TensorDict, max_tokens: int, *, whole_groups: bool = True
) -> list[torch.Tensor]:
    """Returns the row numbers of each micro-batch, ascending: as few micro-batches as can be found.

    A group costs its distinct tokens, and stays together. One without a trained token is left out: its loss
    is 0. One of more than ``max_tokens`` is a micro-batch of its own, or comes in parts.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id. max_tokens: >= 1.
        whole_groups: whether rows of a group are compared with each other, and must stay together.
    """
    if not len(batch):
        return []
    rows, cost = group_tokens(batch, None if whole_groups else max_tokens)
    live = [index for index, tokens in enumerate(cost) if tokens]
    bins = pack([cost[index] for index in live], max_tokens)
    # Groups in the batch's order, so that sums are made in one order however full the bins are.
    return [torch.cat([rows[live[index]] for index in sorted(chosen)]) for chosen in bins]


def pack_sequences(batch: TensorDict, rows: torch.Tensor, device: torch.device) -> MicroBatch:
    """Returns the micro-batch of ``rows`` [B], moved to ``device``.

    Args:
        batch: [N] rows on the CPU with [N, L] keys input_ids, labels and loss_mask among others.
    """
    part = batch[rows]
    part = TensorDict({key: part[key] for key in _tensor_keys(part)}, batch_size=[len(rows)])
    # A row with nothing to train is there to be compared with, and has no token; some row must have one.
    length = trained_lengths(part["loss_mask"])
    if not length.any():
        length[0] = 1
    full, width = part["loss_mask"].shape[1], int(length.max())
    part = part.apply(lambda x: x[:, :width] if x.ndim > 1 and x.shape[1] == full else x)
    order, shared = prefix_order(part["input_ids"], part["group_id"], length)
    position = torch.arange(width)
    is_new = position >= shared[:, None]
    own = is_new & (position < length[order, None])
    # A token is computed in the first row that has it, and known to the rows after it that share it.
    number = torch.where(own, own.flatten().cumsum(0).view_as(own) - 1, -1).cummax(0).values
    start = own.sum(1).cumsum(0) - own.sum(1)
    total = int(own.sum())
    # It is seen until the first row of which it is no part begins.
    ends = torch.where(is_new, start[:, None], total)[1:].flip(0).cummin(0).values.flip(0)
    ends = torch.cat([ends, torch.full((1, width), total)])
    place = part["loss_mask"].flatten().nonzero().squeeze(1)
    if not len(place):
        place = torch.zeros(1, dtype=torch.int64)
    micro_batch = MicroBatch(
        rows=rows,
        tokens=part["input_ids"][order][own].view(1, -1),
        positions=position.expand(len(rows), -1)[own].view(1, -1),
        visible_until=ends[own].view(1, -1),
        chosen=number[order.argsort()].flatten()[place],
        place=place,
        batch=part,
        num_tokens=total,
    )
    return move(micro_batch, device)


def dummy_micro_batch(batch: TensorDict, device: torch.device) -> MicroBatch:
    """Returns a micro-batch of two rows without loss, for a rank out of rows while others have some.

    Two, because losses on pairs refuse an odd number; of different groups, so that they share no prompt.
    """
    rows = TensorDict(
        {key: torch.zeros((2, *batch[key].shape[1:]), dtype=batch[key].dtype) for key in _tensor_keys(batch)},
        batch_size=[2],
    )
    rows["group_id"] = torch.arange(2)
    return pack_sequences(rows, torch.arange(2), device)._replace(
        rows=torch.zeros(0, dtype=torch.int64), num_tokens=0
    )


def pad_to(micro_batch: MicroBatch, length: int) -> MicroBatch:
    """Returns the micro-batch with its line padded to ``length`` tokens, each of which sees itself alone.

    Pipeline stages want lines of one length, sequence parallelism one that its ranks divide.
    """
    old = micro_batch.tokens.shape[1]
    if length <= old:
        return micro_batch
    added = torch.arange(old, length, device=micro_batch.tokens.device).unsqueeze(0)
    zeros = torch.zeros_like(added)
    return micro_batch._replace(
        tokens=torch.cat([micro_batch.tokens, zeros], dim=1),
        positions=torch.cat([micro_batch.positions, zeros], dim=1),
        visible_until=torch.cat([micro_batch.visible_until, added + 1], dim=1),
    )


def move(micro_batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Returns the same on ``device``; ``rows`` stays on the CPU."""
    return micro_batch._replace(
        tokens=micro_batch.tokens.to(device),
        positions=micro_batch.positions.to(device),
        visible_until=micro_batch.visible_until.to(device),
        chosen=micro_batch.chosen.to(device),
        place=micro_batch.place.to(device),
        batch=micro_batch.batch.to(device),
    )


def _tensor_keys(batch: TensorDict) -> Sequence[str | tuple[str, ...]]:
    """Returns the keys that hold numbers: texts stay on the CPU."""
    keys = batch.keys(include_nested=True, leaves_only=True)
    return [key for key in keys if isinstance(batch.get(key), torch.Tensor)]
