"""Rows of a batch into micro-batches: which rows go together, and their tokens laid out as one line.

Rows of one group stay together and share their longest common prefix: the prompt is computed once, whatever
the number of answers, and the result is exactly that of separate rows. No padding token is ever computed.
Components don't know: what they get is [B, L].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict

from titanrl.engine.attention import RowLayout
from titanrl.ops.bins import pack
from titanrl.ops.prefix import group_tokens, shared_prefix, trained_lengths

__all__ = ["MicroBatch", "blank", "lay_out", "pad_to", "plan"]


class MicroBatch(NamedTuple):
    """What one forward and backward pass works on."""

    rows: torch.Tensor
    """[B] int64, row numbers in the batch it came from; empty for a blank."""
    tokens: torch.Tensor
    """[1, T] int64, distinct tokens of the rows."""
    positions: torch.Tensor
    """[1, T] int64, position of each in its row."""
    layout: RowLayout
    """R = B rows of L places."""
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


def plan(batch: TensorDict, max_tokens: int) -> list[torch.Tensor]:
    """Returns the row numbers of each micro-batch: whole groups, in as few micro-batches as can be found.

    A group costs its distinct tokens. One without a trained token is left out: its loss is 0. One of more
    than ``max_tokens`` is a micro-batch of its own, because losses may compare its rows.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id. max_tokens: >= 1.
    """
    if not len(batch):
        return []
    rows, cost = group_tokens(batch)
    live = [index for index, tokens in enumerate(cost) if tokens]
    bins = pack([cost[index] for index in live], max_tokens)
    # Groups in the batch's order, so that sums are made in one order however full the bins are.
    return [torch.cat([rows[live[index]] for index in sorted(chosen)]) for chosen in bins]


def lay_out(batch: TensorDict, rows: torch.Tensor, device: torch.device) -> MicroBatch:
    """Returns the micro-batch of ``rows`` [B], moved to ``device``.

    Args:
        batch: [N] rows on the CPU with [N, L] keys input_ids, labels and loss_mask among others.
    """
    part = batch[rows]
    part = TensorDict({key: part[key] for key in _tensor_keys(part)}, batch_size=[len(rows)])
    length = trained_lengths(part["loss_mask"])
    shared = shared_prefix(part["input_ids"], part["group_id"], length)
    # A row with nothing to train is there to be compared with; it costs no token of its own.
    length = torch.where(length > 0, length, shared).clamp_min(1)
    full, width = part["loss_mask"].shape[1], int(length.max())
    part = part.apply(lambda x: x[:, :width] if x.ndim > 1 and x.shape[1] == full else x)
    position = torch.arange(width)
    is_first = torch.ones(len(rows), dtype=torch.bool)
    is_first[1:] = part["group_id"][1:] != part["group_id"][:-1]
    leader = torch.where(is_first, torch.arange(len(rows)), 0).cummax(0).values
    real = position < length[:, None]
    in_prefix = position < shared[:, None]
    # A token is computed at its own place, a shared one in the first row of its group.
    own = real & (~in_prefix | is_first[:, None])
    number = torch.full((len(rows), width), -1)
    number[own] = torch.arange(int(own.sum()))
    number = torch.where(in_prefix & ~is_first[:, None], number[leader], number)
    copies = real & ~own
    line_row = torch.where(in_prefix, -1 - leader[:, None], torch.arange(len(rows))[:, None])
    mask = part["loss_mask"]
    place = mask.flatten().nonzero().squeeze(1)
    if not len(place):
        place = torch.zeros(1, dtype=torch.int64)
    layout = RowLayout(
        token=number.clamp_min(0).view(1, -1),
        place=own.flatten().nonzero().view(1, -1),
        copy_place=copies.flatten().nonzero().view(1, -1),
        copy_token=number[copies].view(1, -1),
        row=line_row[own].view(1, -1),
        group=leader[:, None].expand(-1, width)[own].view(1, -1),
        num_rows=torch.tensor([len(rows)]),
    )
    micro_batch = MicroBatch(
        rows=rows,
        tokens=part["input_ids"][own].view(1, -1),
        positions=position.expand(len(rows), -1)[own].view(1, -1),
        layout=layout,
        chosen=number.flatten()[place],
        place=place,
        batch=part,
        num_tokens=int(own.sum()),
    )
    return move(micro_batch, device)


def blank(batch: TensorDict, device: torch.device) -> MicroBatch:
    """Returns a micro-batch of two rows without loss, for a rank out of rows while others have some.

    Two, because losses on pairs refuse an odd number; of different groups, so that they share no prompt.
    """
    rows = TensorDict(
        {key: torch.zeros((2, *batch[key].shape[1:]), dtype=batch[key].dtype) for key in _tensor_keys(batch)},
        batch_size=[2],
    )
    rows["group_id"] = torch.arange(2)
    return lay_out(rows, torch.arange(2), device)._replace(
        rows=torch.zeros(0, dtype=torch.int64), num_tokens=0
    )


def pad_to(micro_batch: MicroBatch, length: int) -> MicroBatch:
    """Returns the micro-batch with its line padded to ``length`` tokens, in rows of their own.

    Pipeline stages want lines of one length, sequence parallelism one that its ranks divide.
    """
    tokens, layout = micro_batch.tokens, micro_batch.layout
    missing = length - tokens.shape[1]
    if missing <= 0:
        return micro_batch
    num_rows, old = int(layout.num_rows), tokens.shape[1]
    width = layout.token.shape[1] // num_rows
    added = -(-missing // width)
    device = tokens.device
    extra = torch.arange(missing, device=device)
    slots = torch.full((added * width,), old, device=device)
    slots[:missing] = old + extra
    row = num_rows + extra // width

    def append(x: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, tail.unsqueeze(0)], dim=1)

    return micro_batch._replace(
        tokens=append(tokens, torch.zeros_like(extra)),
        positions=append(micro_batch.positions, extra % width),
        layout=layout._replace(
            token=append(layout.token, slots),
            place=append(layout.place, num_rows * width + extra),
            row=append(layout.row, row),
            group=append(layout.group, row),
            num_rows=layout.num_rows + added,
        ),
    )


def move(micro_batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Returns the same on ``device``; ``rows`` stays on the CPU."""
    if device.type == "cpu":
        return micro_batch
    old = micro_batch.layout
    moved = RowLayout(*(x.to(device) for x in old))
    # How many rows there are is asked by the host.
    layout = moved._replace(num_rows=old.num_rows)
    return micro_batch._replace(
        tokens=micro_batch.tokens.to(device),
        positions=micro_batch.positions.to(device),
        layout=layout,
        chosen=micro_batch.chosen.to(device),
        place=micro_batch.place.to(device),
        batch=micro_batch.batch.to(device),
    )


def _tensor_keys(batch: TensorDict) -> Sequence[str | tuple[str, ...]]:
    """Returns the keys that hold numbers: texts stay on the CPU."""
    keys = batch.keys(include_nested=True, leaves_only=True)
    return [key for key in keys if isinstance(batch.get(key), torch.Tensor)]
