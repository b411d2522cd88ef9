"""Rollouts with several rows: statistics count each rollout once, and its results go back to its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from tensordict import TensorDict

__all__ = ["JoinedRollouts", "join_rollouts", "rollouts_of"]

SUMMED = ("num_turns", "input_length", "step_reward")
"""Keys [N] whose value of a rollout is the sum over its rows; of all others it is that of the first row."""


class JoinedRollouts(NamedTuple):
    """Rollouts as rows: the loss tokens of all rows of an agent's rollout, one after the other."""

    batch: TensorDict
    """[R] rollouts in the order of their first rows, with L the most loss tokens of one. ``input_ids`` and
    ``labels`` hold loss tokens alone, so a model can't be run on them."""
    rollout: torch.Tensor
    """[N] row of ``batch`` that each row belongs to."""
    position: torch.Tensor
    """[N, L] position of each loss token in the row of ``batch``; 0 where masked."""
    mask: torch.Tensor
    """[N, L] loss mask of the rows."""

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of rollouts as values of rows: [R] -> [N], or [R, L'] -> [N, L], 0 where masked."""
        of_rows = values[self.rollout]
        if values.ndim == 1:
            return of_rows
        return torch.where(self.mask, of_rows.gather(1, self.position), torch.zeros((), dtype=values.dtype))

    def spread_into(self, rows: TensorDict, result: TensorDict, keys: Iterable[str]) -> TensorDict:
        """Return ``rows`` with the keys that ``result`` has of ``keys``."""
        rows = rows.copy()
        for key in keys:
            if key in result:
                rows[key] = self.spread(result[key])
        return rows


def join_rollouts(batch: TensorDict) -> JoinedRollouts | None:
    """Return the rollouts of a batch as rows; None if each row is a rollout of the only agent.

    Args:
        batch: [N] rows in any order; rows of a rollout have the same ``rollout_id`` and follow each other by
            ``row_id``. The rows of each agent are a rollout of their own, and those of the same agent are its
            group.
    """
    if "rollout_id" not in batch or len(batch) == 0:
        return None
    identity = torch.stack([batch["rollout_id"], batch["agent_id"]], 1)
    unique, index = torch.unique(identity, dim=0, return_inverse=True)
    num_agents = int(batch["agent_id"].max()) + 1
    if len(unique) == len(batch) and num_agents == 1:
        return None
    rollout, first = _by_appearance(index, len(unique))
    mask = batch["loss_mask"]
    order = torch.argsort(batch["row_id"], stable=True)
    order = order[torch.argsort(rollout[order], stable=True)]
    count = mask.sum(1)
    # Loss tokens before each row within its rollout.
    before = count[order].cumsum(0) - count[order]
    is_first = torch.ones(len(order), dtype=torch.bool)
    is_first[1:] = rollout[order][1:] != rollout[order][:-1]
    start = torch.where(is_first, before, 0).cummax(0).values
    offset = torch.empty_like(before)
    offset[order] = before - start
    position = torch.where(mask, offset.unsqueeze(1) + mask.cumsum(1) - 1, 0)
    totals = torch.zeros(len(unique), dtype=torch.int64).index_add_(0, rollout, count)
    shape = (len(unique), max(int(totals.max()), 1))
    joined = batch[first].copy()
    row, column = mask.nonzero(as_tuple=True)
    target = rollout[row], position[row, column]
    for key in batch.keys(include_nested=True, leaves_only=True):
        values = batch[key]
        if isinstance(values, torch.Tensor) and values.shape[:2] == mask.shape and values.ndim >= 2:
            whole = torch.zeros((*shape, *values.shape[2:]), dtype=values.dtype)
            whole[target] = values[row, column]
            joined[key] = whole
    joined["group_id"] = joined["group_id"] * num_agents + joined["agent_id"]
    for key in SUMMED:
        if key in batch:
            values = batch[key]
            joined[key] = torch.zeros(len(unique), dtype=values.dtype).index_add_(0, rollout, values)
    return JoinedRollouts(joined, rollout, position, mask)


def rollouts_of(batch: TensorDict) -> TensorDict:
    """Return a batch with one row per rollout: ``batch`` itself where each row is a rollout of its own."""
    rollouts = join_rollouts(batch)
    return batch if rollouts is None else rollouts.batch


def _by_appearance(index: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of the rollouts in the order of their first rows, and these rows."""
    first = torch.full((count,), len(index)).scatter_reduce_(0, index, torch.arange(len(index)), "amin")
    order = first.argsort()
    renumbered = torch.empty_like(order)
    renumbered[order] = torch.arange(count)
    return renumbered[index], first[order]
