"""Scores per row and per token, and conversions between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from titanrl.ops.masked import masked_sum, where0

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["fill_missing_scores", "reward_key", "row_score", "scored_tokens", "to_tokens"]


def reward_key(key: str) -> str | tuple[str, str]:
    """Returns the batch key of the summed reward ("reward"), or of the reward with that label."""
    return key if key == "reward" else ("rewards", key)


def fill_missing_scores(scores: Sequence[float | str | None], failure_score: float) -> torch.Tensor:
    """Returns [N] float32 scores with ``failure_score`` where one is missing.

    Args:
        scores: a score, or None or the reason of its absence.
        failure_score: replaces missing scores.
    """
    values = [failure_score if score is None or isinstance(score, str) else score for score in scores]
    return torch.tensor(values, dtype=torch.float32)


def row_score(batch: TensorDict, source: Literal["reward", "token_reward"]) -> torch.Tensor:
    """Returns [N] each row's score, NaN if unscored: its reward, or the sum of its token rewards (float64).

    Args:
        batch: with ``reward`` [N], or ``token_reward`` and ``loss_mask`` [N, L].
        source: the batch key to use.
    """
    if source == "reward":
        reward: torch.Tensor = batch["reward"]
        return reward
    return masked_sum(batch["token_reward"].double(), batch["loss_mask"], -1)


def to_tokens(row: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, L] float32 ``row`` [N] on every loss token, 0 elsewhere; a copy."""
    return where0(loss_mask, row.float().unsqueeze(-1))


def scored_tokens(token_reward: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """Returns [N, L] bool: loss_mask without unscored rows, which have a loss token of reward NaN."""
    unscored = where0(loss_mask, token_reward).isnan().any(-1, keepdim=True)
    return loss_mask & ~unscored
