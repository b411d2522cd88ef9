"""Micro-batches: assigns rows to them and packs the rows' tokens into one sequence.

A prefix that rows of one group share is computed once: the prompt, whatever the number of responses, and the
turns that rollouts have in common. The result is that of separate rows, and no padding token is computed.
Components see only [B, L].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict

from titanrl.engine.bins import pack
from titanrl.ops.prefix import group_tokens, loss_lengths, prefix_order

__all__ = ["MicroBatch", "dummy_micro_batch", "pack_sequences", "pad_to", "assign_micro_batches"]


class MicroBatch(NamedTuple):
    """The rows and tokens of one forward and backward pass."""

    rows: torch.Tensor
    """[B] int64, row indices in the batch; empty for a dummy micro-batch."""
    tokens: torch.Tensor
    """[1, T] int64, the packed sequence: distinct tokens of the rows."""
    positions: torch.Tensor
    """[1, T] int64, position of each token in its row."""
    visible_until: torch.Tensor
    """[1, T] int64: token t is visible to tokens t .. visible_until[t] - 1, whose rows all contain it."""
    gather_index: torch.Tensor
    """[S] int64, the packed token whose hidden state predicts each loss token, in row-major order; S >= 1."""
    scatter_index: torch.Tensor
    """[S] int64, b * L + t of each loss token."""
    batch: TensorDict
    """The rows' keys, [B] and [B, L], on the device; L is the last position of any loss token + 1."""
    num_tokens: int
    """Distinct tokens of the rows, without padding; 0 for a dummy micro-batch."""


def assign_micro_batches(
    batch: TensorDict, max_tokens: int, *, split_groups: bool = False
) -> list[torch.Tensor]:
    """Returns the row indices of each micro-batch, ascending, in few micro-batches.

    A group counts by its distinct tokens and stays together. A group without a loss token is left out: its
    loss is 0. A group of more than ``max_tokens`` is a micro-batch of its own, or is split.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id.
        max_tokens: of a micro-batch, >= 1.
        split_groups: whether a group may be split; not if the loss compares rows of a group.
    """
    if not len(batch):
        return []
    rows, cost = group_tokens(batch, max_tokens if split_groups else None)
    nonempty = [index for index, tokens in enumerate(cost) if tokens]
    bins = pack([cost[index] for index in nonempty], max_tokens)
    # Groups in the batch's order, so that the order of summation does not depend on the packing.
    return [torch.cat([rows[nonempty[index]] for index in sorted(members)]) for members in bins]


def pack_sequences(batch: TensorDict, rows: torch.Tensor, device: torch.device) -> MicroBatch:
    """Returns the micro-batch of ``rows`` [B], moved to ``device``.

    Args:
        batch: [N] rows on the CPU with [N, L] keys input_ids, labels and loss_mask among others.
        rows: indices in the batch.
        device: of the model.
    """
    part = batch[rows]
    part = TensorDict({key: part[key] for key in _tensor_keys(part)}, batch_size=[len(rows)])
    # A row without loss tokens is compared with and contributes no token; at least one token is needed.
    length = loss_lengths(part["loss_mask"])
    if not length.any():
        length[0] = 1
    full, width = part["loss_mask"].shape[1], int(length.max())
    part = part.apply(lambda x: x[:, :width] if x.ndim > 1 and x.shape[1] == full else x)
    order, shared = prefix_order(part["input_ids"], part["group_id"], length)
    position = torch.arange(width)
    is_new = position >= shared[:, None]
    own = is_new & (position < length[order, None])
    # A token is computed in the first row that has it; the rows after it that share it refer to it.
    packed_index = torch.where(own, own.flatten().cumsum(0).view_as(own) - 1, -1).cummax(0).values
    start = own.sum(1).cumsum(0) - own.sum(1)
    total = int(own.sum())
    # It is visible up to the start of the first row that does not contain it.
    ends = torch.where(is_new, start[:, None], total)[1:].flip(0).cummin(0).values.flip(0)
    ends = torch.cat([ends, torch.full((1, width), total)])
    scatter_index = part["loss_mask"].flatten().nonzero().squeeze(1)
    if not len(scatter_index):
        scatter_index = torch.zeros(1, dtype=torch.int64)
    micro_batch = MicroBatch(
        rows=rows,
        tokens=part["input_ids"][order][own].view(1, -1),
        positions=position.expand(len(rows), -1)[own].view(1, -1),
        visible_until=ends[own].view(1, -1),
        gather_index=packed_index[order.argsort()].flatten()[scatter_index],
        scatter_index=scatter_index,
        batch=part,
        num_tokens=total,
    )
    return _to_device(micro_batch, device)


def dummy_micro_batch(batch: TensorDict, device: torch.device) -> MicroBatch:
    """Returns a micro-batch of two rows without loss, for a rank that has fewer micro-batches than another.

    Two rows, because losses on pairs need an even number; of different groups, so that they share no prompt.

    Args:
        batch: gives the keys and their shapes.
        device: of the model.
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
    """Returns the micro-batch with its sequence padded to ``length`` tokens, each of which sees only itself.

    Pipeline stages need sequences of one length, sequence parallelism a length that its ranks divide.
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


def _to_device(micro_batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Returns the micro-batch on ``device``; ``rows`` stays on the CPU."""
    return micro_batch._replace(
        tokens=micro_batch.tokens.to(device),
        positions=micro_batch.positions.to(device),
        visible_until=micro_batch.visible_until.to(device),
        gather_index=micro_batch.gather_index.to(device),
        scatter_index=micro_batch.scatter_index.to(device),
        batch=micro_batch.batch.to(device),
    )


def _tensor_keys(batch: TensorDict) -> Sequence[str | tuple[str, ...]]:
    """Returns the keys that hold tensors: texts stay on the CPU."""
    keys = batch.keys(include_nested=True, leaves_only=True)
    return [key for key in keys if isinstance(batch.get(key), torch.Tensor)]
