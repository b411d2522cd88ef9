"""REINFORCE++: discounted reward-to-go, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.masked import where0, whiten
from titanrl.ops.returns import reward_to_go
from titanrl.ops.scores import scored_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "reinforce_plus_plus")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus:
    """Discounted reward-to-go, whitened over the batch, and the reward-to-go as returns, [N, L]; 0 where
    masked.

        R_t = token_reward_t + gamma R_next(t),   A = (R - mean) / sqrt(var + 1e-8)

    next(t) is the next *loss* token: observations neither discount, nor reset, nor contribute. Mean and
    unbiased variance are taken over all loss tokens of the batch; with fewer than two, or if all are equal,
    the result is 0. A row with a token reward of NaN is unscored: it enters no statistic and gets 0.

    Source: 2501.03262. With whiten = false this is REINFORCE with reward-to-go.
    """

    gamma: Annotated[float, Range("[0, 1]")] = 1.0
    """Discount per loss token."""
    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the batch."""
    in_keys: ClassVar[tuple[str, ...]] = ("token_reward",)
    is_group_relative: ClassVar[bool] = False

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.whiten else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = scored_tokens(batch["token_reward"], batch["loss_mask"])
        returns = reward_to_go(where0(mask, batch["token_reward"]), batch["loss_mask"], self.gamma)
        return Advantages(whiten(returns, mask) if self.whiten else returns.clone(), returns)
