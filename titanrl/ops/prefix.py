"""Shared prefixes of the rows of a group, and the number of distinct tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["group_tokens", "prefix_order", "loss_lengths"]


def loss_lengths(mask: torch.Tensor) -> torch.Tensor:
    """Returns [N] int64, the position of each row's last loss token + 1; 0 on a fully masked row.

    Tokens after it do not affect the loss.

    Args:
        mask: [N, L] bool on the CPU, loss_mask.
    """
    if not mask.numel():
        return torch.zeros(len(mask), dtype=torch.int64)
    # On the reversed row numpy's argmax stops at the last loss token.
    num_after = torch.from_numpy(mask.numpy()[:, ::-1].argmax(1))
    return torch.where(mask.any(1), mask.shape[1] - num_after, 0)


def prefix_order(
    input_ids: torch.Tensor, group_id: torch.Tensor, length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (order [N], shared [N]), int64: a walk through the prefix tree of each group's rows.

    ``order`` lists the rows group by group, in the batch's order of groups. ``shared[i]`` is the length of
    the longest prefix that row ``order[i]`` shares with an earlier row of its group, which is the prefix that
    it shares with the row just before it; 0 for a group's first row. No earlier row has its further tokens.

    Args:
        input_ids: [N, L] int64.
        group_id: [N] int64, in any order.
        length: [N] int64, tokens of each row that count.
    """
    count = len(group_id)
    ids, lengths, groups = input_ids.numpy(), length.tolist(), group_id.tolist()
    first: dict[int, int] = {}
    for row, group in enumerate(groups):
        first.setdefault(group, row)
    # Bytes are compared from the first token on; any order of token ids is good enough.
    keys = [(first[groups[row]], ids[row, : lengths[row]].tobytes()) for row in range(count)]
    order = sorted(range(count), key=keys.__getitem__)
    shared = [0] * count
    for index, (before, row) in enumerate(pairwise(order), start=1):
        if groups[before] == groups[row]:
            shorter = min(lengths[before], lengths[row])
            differs = ids[before, :shorter] != ids[row, :shorter]
            shared[index] = int(differs.argmax()) if differs.any() else shorter
    return torch.tensor(order, dtype=torch.int64), torch.tensor(shared, dtype=torch.int64)


def group_tokens(batch: TensorDict, max_tokens: int | None = None) -> tuple[list[torch.Tensor], list[int]]:
    """Returns each group's row indices, ascending, and its number of distinct tokens, in the batch's order.

    Tokens count up to the last loss token of each row, shared prefixes once; 0 if a group has no loss token.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id, in any order.
        max_tokens: a larger group is split into parts of at most so many tokens, each with a copy of the
            prefix of its rows; a longer row is a part of its own. None: groups are not split.
    """
    length = loss_lengths(batch["loss_mask"])
    order, shared = prefix_order(batch["input_ids"], batch["group_id"], length)
    rows: list[list[int]] = []
    tokens: list[int] = []
    last = None
    for row, group, num_tokens, num_shared in zip(
        order.tolist(),
        batch["group_id"][order].tolist(),
        length[order].tolist(),
        shared.tolist(),
        strict=True,
    ):
        is_full = (
            max_tokens is not None
            and bool(rows)
            and tokens[-1] > 0
            and tokens[-1] + num_tokens - num_shared > max_tokens
        )
        if group != last or is_full:
            rows.append([])
            tokens.append(0)
            num_shared = 0
        rows[-1].append(row)
        tokens[-1] += num_tokens - num_shared
        last = group
    return [torch.tensor(sorted(part)) for part in rows], tokens
