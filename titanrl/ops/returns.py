"""Sums along a row over its loss tokens only: reward-to-go and generalized advantage estimation.

Masked tokens between loss tokens (observations, tool outputs) are skipped: they neither discount nor
contribute. Everything here runs on the global batch on the CPU without gradients.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["gae", "reward_to_go"]


def gae(
    token_reward: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns generalized advantages and their returns, each [N, L] float32, exactly 0 where masked.

    Over the loss tokens of a row, with ``V_(n+1) = 0`` (to bootstrap, add gamma V_(n+1) to the last
    reward): ``delta_k = r_k + gamma V_(k+1) - V_k``, ``A_k = delta_k + gamma lam A_(k+1)``,
    ``R_k = A_k + V_k``.
    Computed as ``R_k = r_k + gamma ((1 - lam) V_(k+1) + lam R_(k+1))``, from right to left in float64: the
    same numbers, with less to round than in a sum of delta.

    Args:
        token_reward: [N, L] float, undefined where masked.
        value: [N, L] float, undefined where masked.
        mask: [N, L] bool, the loss_mask.
        gamma: discount, in [0, 1].
        lam: one number, or [N], one per row, in [0, 1].

    Source: Schulman et al., arXiv 1506.02438, equations 11-16.
    """
    reward, value = token_reward.float().contiguous(), value.float().contiguous()
    advantage, returns = torch.empty_like(reward), torch.empty_like(reward)
    weight = torch.as_tensor(lam, dtype=torch.float64).expand(len(mask))
    factors = (gamma * (1 - weight), gamma * weight)
    _compiled_scan()(*(x.flatten().numpy() for x in (*factors, reward, value, mask, advantage, returns)))
    return advantage, returns


def reward_to_go(token_reward: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0) -> torch.Tensor:
    """Returns [N, L] float32 ``R_t = token_reward_t + gamma * R_next(t)``, next(t) the next loss token.

    Masked positions of ``token_reward`` are not read; the result is exactly 0 there.
    """
    return gae(token_reward, torch.zeros_like(token_reward), mask, gamma, lam=1.0)[1]


@functools.cache
def _compiled_scan() -> Any:
    """Returns the compiled scan, which visits a token twice instead of a dozen times as tensor operations do.

    numba is imported here because its import takes longer than the scan of a batch.
    """
    import numba
    import numpy as np

    def scan(
        of_value: np.ndarray,
        of_return: np.ndarray,
        reward: np.ndarray,
        value: np.ndarray,
        mask: np.ndarray,
        advantage: np.ndarray,
        returns: np.ndarray,
    ) -> None:
        """Fills advantage and returns, [N * L] like the inputs; of_value, of_return: [N] float64 factors."""
        length = reward.size // max(of_value.size, 1)
        zero = np.float32(0)
        for i in range(of_value.size):
            # Unsigned: with a signed index each access would check whether it counts from the end.
            begin, end = np.uint64(i * length), np.uint64((i + 1) * length)
            c, d = of_value[i], of_return[i]
            next_value, next_return = 0.0, 0.0
            for back in range(np.uint64(1), np.uint64(length + 1)):
                at = end - back
                if mask[at]:
                    next_return = reward[at] + c * next_value + d * next_return
                    next_value = value[at]
                    returns[at] = next_return
            for k in range(begin, end):  # apart from the recurrence above, so that it is vectorized
                advantage[k] = returns[k] - value[k] if mask[k] else zero
                returns[k] = returns[k] if mask[k] else zero

    return numba.njit(fastmath={"contract"})(scan)
