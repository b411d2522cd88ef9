"""Per-token rewards in ``token_reward``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from titanrl.ops.masked import where0
from titanrl.ops.sequence import is_last_loss_token

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["add_token_rewards"]


def add_token_rewards(token_reward: torch.Tensor, batch: TensorDict, scale: float = 1.0) -> torch.Tensor:
    """Return ``token_reward`` with every per-token reward at its own positions.

    A row's reward includes the sums of its per-token rewards, and is initially on the last response token.
    With P = scale * sum_k token_rewards_k, P_t is added at each position t and sum_t P_t is subtracted from
    the last response token, so that the row's sum does not change.

    Args:
        token_reward: [N, L] float32, the complete reward on the last response token.
        batch: N rows; ``token_rewards`` maps labels to weighted rewards [N, L], 0 where masked.
        scale: factor that reward scaling applies to the reward.

    Returns:
        [N, L] float32; ``token_reward`` itself if the batch has no per-token rewards.
    """
    parts = batch.get("token_rewards", None)
    if parts is None or parts.is_empty():
        return token_reward
    per_token = scale * torch.stack([parts[label] for label in sorted(parts.keys())]).sum(0)
    total = per_token.sum(-1, keepdim=True, dtype=torch.float64).float()
    return token_reward + per_token - where0(is_last_loss_token(batch["loss_mask"]), total)
