"""Sums along a row over its trainable tokens only: reward-to-go and generalised advantage estimation.

Masked tokens between trainable ones (observations, tool answers) are skipped whole: they neither discount nor
contribute. Everything here runs on the global batch on the CPU and carries no gradient.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

__all__ = ["Layout", "decayed_sum", "gae", "reward_to_go"]

BLOCK = 16
"""Tokens a block: a block's scan is one matrix product, and the blocks' heads are scanned the same way."""
HEADS = 64
"""Heads a block: fewer rounds, where the products are small anyway."""


class Layout(NamedTuple):
    """Rows of a batch without the masked tokens that stand between trainable ones. All float32."""

    bits: torch.Tensor
    """[N, L] int32, all ones where trainable, else 0. `and` with it replaces garbage by 0 many times faster
    than torch.where, which torch 2.13 does not vectorise on CPU."""
    token: torch.Tensor | None
    """[M] int64, flat position of each trainable token; None: no row has a hole, so nothing moves."""
    slot: torch.Tensor | None
    """[M] int64, its flat position among [N, L] when the trainable tokens of a row move to the left."""

    @classmethod
    def of(cls, mask: torch.Tensor) -> Layout:
        """Returns the layout of loss_mask [N, L] bool."""
        bits = mask.view(torch.int8).neg().to(torch.int32)
        runs = (mask[:, 1:] > mask[:, :-1]).count_nonzero() + mask[:, :1].count_nonzero()
        # A branch on data, outside every compiled graph: most batches have no holes, and moving is slow.
        if int(runs) == int(mask.view(torch.uint8).amax(-1).sum()):
            return cls(bits, None, None)
        lengths = mask.sum(-1, keepdim=True)
        left = torch.arange(mask.shape[1], device=mask.device) < lengths
        return cls(bits, _positions(mask), _positions(left))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [N, L] the trainable values of ``x`` in order; around them 0 if they moved, else any."""
        return x.float().contiguous() if self.token is None else _move(x.float(), self.token, self.slot)

    def clear_(self, x: torch.Tensor) -> torch.Tensor:
        """Returns gathered ``x`` after setting what isn't trainable to exactly 0, in place."""
        if self.token is None:
            x.view(torch.int32).bitwise_and_(self.bits)
        return x

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [N, L] gathered ``x`` back in its places, exactly 0 where masked; may reuse its memory."""
        return self.clear_(x) if self.token is None else _move(x, self.slot, self.token)


def _move(x: torch.Tensor, source: torch.Tensor | None, target: torch.Tensor | None) -> torch.Tensor:
    assert source is not None
    assert target is not None
    values = x.flatten().index_select(0, source)
    return torch.zeros(x.numel(), device=x.device).scatter_(0, target, values).view_as(x)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Returns [M] int64 the flat positions where ``mask`` holds."""
    flat = mask.flatten()
    if flat.device.type != "cpu":
        return flat.nonzero().squeeze(-1)
    import numpy

    return torch.from_numpy(numpy.flatnonzero(flat.numpy()))  # six times faster than torch 2.13's nonzero


def decayed_sum(x: torch.Tensor, decay: float | torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """Returns [N, L] ``y_k = x_k + decay * y_(k+1)``, that is ``sum_(j>=k) decay^(j-k) x_j``.

    Args:
        x: [N, L] float, all finite. decay: one number, or [N] float64 one a row; in [0, 1].
        block: tokens that one matrix product takes.
    """
    rows, length = x.shape
    num_blocks = max(1, -(-length // block))
    if num_blocks * block != length:
        x = torch.nn.functional.pad(x, (0, num_blocks * block - length))
    kernel, distance = _weights(decay, block, x.dtype)
    blocks = x.reshape(rows, num_blocks, block) @ kernel
    if num_blocks > 1:
        heads = decayed_sum(blocks[..., 0], decay**block, HEADS)
        following = torch.nn.functional.pad(heads[:, 1:], (0, 1)).unsqueeze(-1)
        blocks.addcmul_(following, distance)
    return blocks.view(rows, num_blocks * block)[:, :length]


def _weights(
    decay: float | torch.Tensor, block: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what takes a block to its sums [.., B, B], and the next block's head to the block [.., B]."""
    if isinstance(decay, torch.Tensor):
        return _powers(decay.double().view(-1, 1, 1), block, dtype)
    return _cached_powers(float(decay), block, dtype)


@functools.lru_cache(maxsize=64)
def _cached_powers(decay: float, block: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return _powers(torch.tensor(decay, dtype=torch.float64), block, dtype)


def _powers(decay: torch.Tensor, block: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    # In float64: powers of a rounded decay would be wrong in the sixth digit.
    steps = torch.arange(block, device=decay.device)
    lag = steps.unsqueeze(-1) - steps
    kernel = torch.where(lag < 0, 0.0, decay ** lag.clamp_min(0))
    return kernel.to(dtype), (decay ** (block - steps)).to(dtype)


def reward_to_go(token_reward: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0) -> torch.Tensor:
    """Returns [N, L] float32 ``R_t = token_reward_t + gamma * R_next(t)``, next(t) the next trainable token.

    Masked places of ``token_reward`` are not read; those of the result are exactly 0.
    """
    layout = Layout.of(mask)
    reward = layout.clear_(layout.gather(token_reward).clone())
    return layout.scatter(decayed_sum(reward, gamma).contiguous())


def gae(
    token_reward: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    gamma: float,
    lam: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns generalised advantages and their returns, each [N, L] float32, exactly 0 where masked.

    Over the trainable tokens of a row, with ``V_(n+1) = 0`` (to bootstrap, add gamma V_(n+1) to the last
    reward): ``delta_k = r_k + gamma V_(k+1) - V_k``, ``A_k = delta_k + gamma lam A_(k+1)``,
    ``R_k = A_k + V_k``.
    Computed by one scan of ``S_k = (1 - lam) V_k + lam R_k``, which gives ``R_k = r_k + gamma S_(k+1)``: the
    same numbers, with less to round than in a sum of delta.

    Args:
        token_reward, value: [N, L] float, masked places undefined. layout: Layout.of(loss_mask).
        gamma: discount. lam: one number, or [N] float64 one a row; both in [0, 1].

    Source: Schulman et al., arXiv 1506.02438, equations 11-16.
    """
    reward, value = layout.gather(token_reward), layout.gather(value)
    weight = lam.to(value.dtype).unsqueeze(-1) if isinstance(lam, torch.Tensor) else lam
    mixed = decayed_sum(layout.clear_(torch.lerp(value, reward, weight)), gamma * lam)
    returns = torch.empty_like(reward)
    torch.add(reward[:, :-1], mixed[:, 1:], alpha=gamma, out=returns[:, :-1])
    returns[:, -1] = reward[:, -1]
    return layout.scatter(returns - value), layout.scatter(returns)
