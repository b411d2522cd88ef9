"""Pairwise ranking loss of a reward model on K ranked responses per prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.ops.covariance import same_group
from titanrl.ops.masked import where0
from titanrl.ops.sequence import at_last_loss_token
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "pairwise_ranking")
@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseRanking:
    """Mean ranking loss over all ordered pairs of a group, per row, [B, 1].

        loss_g = mean of -log sig(s_a - s_b) over the ordered pairs of the group with reward_a > reward_b

    The score s is policy.value at the row's last loss token; fully masked rows form no pair. All
    K(K-1)/2 pairs of K responses come from one forward pass. Every row of the group carries the loss; a
    group without an ordered pair gets 0.
    Metrics: accuracy (fraction of ordered pairs with s_a > s_b, 0 where there are none), [B, 1].

    Source: InstructGPT 2203.02155 eq. 1.
    """

    in_keys: ClassVar[tuple[str, ...]] = ("reward", "group_id")
    needs: ClassVar[tuple[str, ...]] = ("value",)
    couples_group: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.value is not None
        mask, reward = batch["loss_mask"], batch["reward"]
        nonempty = mask.any(-1)
        same = same_group(batch["group_id"])
        pair = same & nonempty[:, None] & nonempty[None, :] & (reward[:, None] > reward[None, :])
        score = at_last_loss_token(policy.value, mask)
        difference = score[:, None] - score[None, :]

        def group_mean(x: torch.Tensor) -> torch.Tensor:
            """[B, B] over ordered pairs -> [B, 1] mean over the pairs of the row's group."""
            total = where0(same, where0(pair, x).sum(-1)[None, :]).sum(-1, keepdim=True)
            return total / where0(same, pair.sum(-1)[None, :]).sum(-1, keepdim=True).clamp_min(1)

        loss = group_mean(torch.nn.functional.softplus(-difference))
        return TokenLoss(loss, {"accuracy": group_mean((difference > 0).float())})
