"""Critic loss with clipping around the old value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "value")
@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Clipped regression of the critic on the returns, per token, [B, L].

        v_c  = V + clip(v - V, -clip, clip)
        loss = max( f(v - R), f(v_c - R) ),  f(e) = e^2 / 2, or delta (|e| - delta/2) beyond delta for huber

    v is the critic's current output, V its value before the update (batch key `value`), R the returns.
    The clip range is centred on the old value. Within it the gradient is f'(v - R); where the clipped
    branch is strictly larger, it is 0. The sampling temperature does not affect values. Masked positions
    get 0.
    Metrics: clip_fraction (`|v - V| > clip` and the clipped branch is strictly larger).

    Source: the PPO reference implementation (openai/baselines); huber: AReaL.
    """

    clip: Annotated[float, Range("(0, inf]")] = 0.2
    """Half-width of the clip range around the old value; inf: no clipping."""
    loss: Literal["squared", "huber"] = "squared"
    """Shape of f."""
    delta: Annotated[float, Range("(0, inf)")] = 10.0
    """Error at which huber becomes linear; used by huber only."""
    in_keys: ClassVar[tuple[str, ...]] = ("value", "returns")
    needs: ClassVar[tuple[str, ...]] = ("value",)

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.value is not None
        mask = batch["loss_mask"]
        value, old_value = where0(mask, policy.value), where0(mask, batch["value"])
        returns = where0(mask, batch["returns"])
        change = value - old_value
        unclipped = self._penalty(value - returns)
        clipped = self._penalty(old_value + change.clamp(-self.clip, self.clip) - returns)
        larger = clipped > unclipped
        outside = change.detach().abs() > self.clip
        return TokenLoss(
            torch.where(larger, clipped, unclipped), {"clip_fraction": (outside & larger).float()}
        )

    def _penalty(self, error: torch.Tensor) -> torch.Tensor:
        squared = error.square() / 2
        if self.loss == "squared":
            return squared
        size = error.abs()
        return torch.where(size <= self.delta, squared, self.delta * (size - self.delta / 2))
