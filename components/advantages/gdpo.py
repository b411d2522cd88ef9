"""GDPO: group-normalised advantage of each reward separately, summed and whitened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import whiten
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "gdpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GDPO:
    """Weighted sum of separately group-normalised rewards, whitened over the batch, [N, L]; 0 where masked.

        A = W( sum_k w_k (r^k_i - mean_g r^k) / (sd_g r^k + eps) ),   W(x) = (x - mean) / sqrt(var + 1e-8)

    A reward that is constant within the group adds 0. W is taken over all loss tokens of the batch; with
    fewer than two, or if all are equal, the result is 0. A row with NaN in any of the rewards is unscored:
    it enters no statistic and gets 0.

    Source: 2601.05242.
    """

    rewards: tuple[str, ...]
    """Labels of the rewards to normalise separately; at least one."""
    weights: Annotated[tuple[float, ...] | None, Range("(-inf, inf)")] = None
    """Weight of each reward; omitted: all 1."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """Added to each standard deviation."""
    whiten: bool = True
    """Normalise the sum to mean 0 and variance 1 over the batch."""

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ValueError("rewards must name at least one reward, got none.")
        if len(set(self.rewards)) != len(self.rewards):
            raise ValueError(f"rewards must name each reward once, got {list(self.rewards)}.")
        if self.weights is not None and len(self.weights) != len(self.rewards):
            raise ValueError(
                f"weights must be as many as rewards ({len(self.rewards)}), got {len(self.weights)}."
            )

    @property
    def in_keys(self) -> tuple[tuple[str, str], ...]:
        return tuple(("rewards", name) for name in self.rewards)

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.whiten else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        rewards = [batch["rewards", name] for name in self.rewards]
        scored = ~torch.stack(rewards).isnan().any(0)
        total = torch.zeros_like(rewards[0], dtype=torch.float64)
        for weight, reward in zip(self.weights or [1.0] * len(rewards), rewards, strict=True):
            groups = GroupScores.of(torch.where(scored, reward, torch.nan), batch["group_id"])
            normalised = (groups.score - groups.mean()) / (groups.std() + self.eps)
            total = total + weight * torch.where(groups.comparable, normalised, 0.0)
        mask = batch["loss_mask"] & scored.unsqueeze(-1)
        advantage = to_tokens(total, mask)
        return Advantages(whiten(advantage, mask) if self.whiten else advantage)
