"""What the rows of a group have in common at their start, and how many distinct tokens that leaves."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["group_tokens", "prefix_order", "trained_lengths"]


def trained_lengths(mask: torch.Tensor) -> torch.Tensor:
    """Returns [N] int64, the last trainable position + 1; 0 on a fully masked row.

    What comes after it changes nothing that is trained.

    Args:
        mask: [N, L] bool on the CPU, loss_mask.
    """
    if not mask.numel():
        return torch.zeros(len(mask), dtype=torch.int64)
    # Numpy stops at the first one that it finds, which is the last.
    after = torch.from_numpy(mask.numpy()[:, ::-1].argmax(1))
    return torch.where(mask.any(1), mask.shape[1] - after, 0)


def prefix_order(
    input_ids: torch.Tensor, group_id: torch.Tensor, length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (order [N], shared [N]), int64: a walk through the prefix tree of each group's rows.

    ``order`` are the rows, group after group as they come in the batch. ``shared[i]`` is how many tokens at
    its start row ``order[i]`` has in common with any row of its group before it in that order, which are
    those it has in common with the very one before; 0 for a group's first. The rest of it are tokens that no
    row before it has.

    Args:
        input_ids: [N, L] int64. group_id: [N] int64, in any order. length: [N] int64, tokens of each row
            that count.
    """
    count = len(group_id)
    ids, lengths, groups = input_ids.numpy(), length.tolist(), group_id.tolist()
    first: dict[int, int] = {}
    for row, group in enumerate(groups):
        first.setdefault(group, row)
    # Bytes are compared from the first token on, by whichever byte differs: any order of tokens will do.
    keys = [(first[groups[row]], ids[row, : lengths[row]].tobytes()) for row in range(count)]
    order = sorted(range(count), key=keys.__getitem__)
    shared = [0] * count
    for place, (before, row) in enumerate(pairwise(order), start=1):
        if groups[before] == groups[row]:
            most = min(lengths[before], lengths[row])
            differs = ids[before, :most] != ids[row, :most]
            shared[place] = int(differs.argmax()) if differs.any() else most
    return torch.tensor(order, dtype=torch.int64), torch.tensor(shared, dtype=torch.int64)


def group_tokens(batch: TensorDict, most: int | None = None) -> tuple[list[torch.Tensor], list[int]]:
    """Returns each group's row numbers, ascending, and its number of distinct tokens, in the batch's order.

    Tokens count up to the last trained one of each row, those that rows begin with alike once; 0 if a group
    trains nothing.

    Args:
        batch: [N] rows with input_ids, loss_mask and group_id, in any order.
        most: a group of more tokens comes in parts of at most so many, each with a copy of what its rows
            share, and a part for itself for a longer row; None: groups stay whole.
    """
    length = trained_lengths(batch["loss_mask"])
    order, shared = prefix_order(batch["input_ids"], batch["group_id"], length)
    rows: list[list[int]] = []
    tokens: list[int] = []
    last = None
    for row, group, total, known in zip(
        order.tolist(),
        batch["group_id"][order].tolist(),
        length[order].tolist(),
        shared.tolist(),
        strict=True,
    ):
        is_full = most is not None and bool(rows) and tokens[-1] > 0 and tokens[-1] + total - known > most
        if group != last or is_full:
            rows.append([])
            tokens.append(0)
            known = 0
        rows[-1].append(row)
        tokens[-1] += total - known
        last = group
    return [torch.tensor(sorted(part)) for part in rows], tokens
