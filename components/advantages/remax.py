"""ReMax: reward-to-go minus the reward of the greedy response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from titanrl.ops.masked import where0
from titanrl.ops.returns import reward_to_go
from titanrl.ops.scores import scored_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "remax")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReMax:
    """Reward-to-go minus the greedy response's reward, and the reward-to-go as returns, [N, L]; 0 where
    masked.

        R_t = sum of token_reward over the loss tokens from t on,   A_t = R_t - baseline_reward

    A row with NaN in a token reward or in the baseline is unscored and gets 0.

    Source: 2310.10505.
    """

    in_keys: ClassVar[tuple[str, ...]] = ("token_reward", "baseline_reward")
    is_group_relative: ClassVar[bool] = False
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        baseline = batch["baseline_reward"].unsqueeze(-1)
        mask = scored_tokens(batch["token_reward"], batch["loss_mask"]) & ~baseline.isnan()
        returns = reward_to_go(where0(mask, batch["token_reward"]), batch["loss_mask"])
        return Advantages(where0(mask, returns - baseline), returns)
