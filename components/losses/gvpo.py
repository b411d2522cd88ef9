"""GVPO: regression of the policy's centred log-ratios onto the centred rewards of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.covariance import same_group
from titanrl.ops.masked import where0
from titanrl.ops.ratio import log_ratio
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "gvpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GVPO:
    """Group variance policy optimization, per row, [B, 1].

        loss_i = 1/2 (S_i - sg(mean_g S) - a_i)^2 n / (n - 1)
        S_i    = beta (sum over loss tokens of l - l_old),   a_i = mean_i A

    n is the number of scored rows of the group with a loss token, over which the mean of S runs. A group of
    one, an unscored row (NaN) and an empty row get 0. Use the advantage grpo with std = "none". S is not
    clamped, because the square limits it. With the aggregation sequence_mean, the total is the mean over
    groups of sum / (n - 1), halved. A group of equal rewards still has a loss, which pulls its S together.

    Source: GVPO 2504.19599.
    """

    beta: Annotated[float, Range("(0, inf)")] = 0.1
    """Strength of the regularisation towards the old policy."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage", "reward", "group_id")
    couples_group: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        member = mask.any(-1) & ~batch["reward"].isnan()
        peers = same_group(batch["group_id"]) & member[None, :] & member[:, None]
        count = peers.sum(-1, keepdim=True)
        score = self.beta * sequence_sum(log_ratio(policy.logprob, batch["old_logprob"], mask), mask)
        mean = where0(peers, score.detach()[:, 0][None, :]).sum(-1, keepdim=True) / count.clamp_min(1)
        target = sequence_mean(batch["advantage"], mask)
        loss = (score - mean - target).square() / 2 * count / (count - 1).clamp_min(1)
        return TokenLoss(where0(count > 1, loss), {})
