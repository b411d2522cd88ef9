"""Optimal token baseline: reward-to-go minus a mean weighted by the expected squared gradient norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import group_index, segment_sum
from titanrl.ops.masked import where0
from titanrl.ops.scores import scored_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "optimal_token_baseline")
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalTokenBaseline:
    """Reward-to-go minus the variance-minimising baseline per token, and the reward-to-go as returns, [N,
    L].

        G_t = sum of token_reward from t on
        w_t = 1 - 2 exp(l_old_t) + sum_pi_squared_t,   W_k = w_1 + ... + w_k
        A_k = G_k - B_k,   B_k = sum_j G_jk W_jk / (sum_j W_jk + eps)

    k counts a row's *loss* tokens, because absolute positions do not correspond in multi-turn rows; the sum
    runs over the rows of the group that have a k-th loss token. A group with fewer than two non-empty rows
    gets A = 0. A row with a token reward of NaN is unscored: it enters no sum and gets 0. Where eps > 0,
    equal returns leave G eps / (W + eps), not exactly 0. Masked positions get 0.

    Source: Li et al., "The Optimal Token Baseline: variance reduction for long-horizon LLM-RL", 2026. w_t
    is the squared norm of the gradient of l_t with respect to the logits.
    """

    zero_tail: bool = True
    """Use baseline 0 where only the group's longest row is left, which would otherwise be its own
    baseline."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-8
    """Added to the sum of weights."""
    in_keys: ClassVar[tuple[str, ...]] = ("token_reward", "old_logprob", "sum_pi_squared")
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = scored_tokens(batch["token_reward"], batch["loss_mask"])
        reward = where0(mask, batch["token_reward"]).double()
        returns = reward.flip(-1).cumsum(-1).flip(-1)
        probability = where0(mask, batch["old_logprob"]).double().exp()
        score_square = 1 - 2 * probability + where0(mask, batch["sum_pi_squared"])
        weight = where0(mask, score_square).cumsum(-1)

        index, num = group_index(batch["group_id"])
        length = mask.shape[1]
        # One segment per (group, ordinal of the loss token).
        segment = index.unsqueeze(-1) * length + (mask.cumsum(-1) - 1).clamp_min(0)

        def over_group(x: torch.Tensor) -> torch.Tensor:
            sums = segment_sum(where0(mask, x).flatten(), segment.flatten(), num * length)
            return sums[segment]

        baseline = over_group(returns * weight) / (over_group(weight) + self.eps)
        if self.zero_tail:
            is_only_row = over_group(torch.ones_like(weight)) == 1
            baseline = torch.where(is_only_row, 0.0, baseline)
        nonempty = segment_sum(mask.any(-1).double(), index, num)[index]
        advantage = where0(mask & (nonempty >= 2).unsqueeze(-1), returns - baseline)
        return Advantages(advantage.float(), where0(mask, returns).float())
