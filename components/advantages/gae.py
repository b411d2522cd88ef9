"""GAE: exponentially weighted temporal differences over the trainable tokens, with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.errors import check_range
from titanrl.ops.masked import masked_sum, where0, whiten
from titanrl.ops.returns import gae
from titanrl.ops.sequence import at_last_trainable, is_last_trainable
from titanrl.protocols import Advantages, FinishReason
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "gae")
@dataclass(frozen=True, slots=True, kw_only=True)
class GAE:
    """Returns advantages and the critic's targets ``returns``, [N, L]; 0 where masked.

    Over the trainable tokens t1 < ... < tn of a row, from right to left:

        delta_k = token_reward_k + gamma V_(k+1) - V_k,    A_k = delta_k + gamma lam A_(k+1),   A_(n+1) = 0
        returns = A^(lam_value) + V,    advantage = A^(lam), whitened over the batch if asked

    V_(n+1) is 0 for a finished row. For a row cut by its token limit under `bootstrap = "truncated"` it is
    final_value where the batch has it, else V_n, a one-step proxy; aborted rows are not bootstrapped. The
    column after the last trainable token is never read: it is padding or an observation. Observations
    between trainable tokens are skipped whole. A row with a token reward of NaN is unscored: in no
    statistic, advantage 0, returns V (nothing to learn).

    Source: 1506.02438; length_alpha and lam_value: VAPO 2504.05118. Elsewhere: values at masked tokens zeroed
    (OpenRLHF, slime) or read as they are (SkyRL, torchtune); both change credit.
    """

    gamma: float = 1.0
    """Discount a trainable token, in [0, 1]."""
    lam: float = 0.95
    """Weight of later temporal differences in the policy's advantage, in [0, 1]."""
    lam_value: float | None = None
    """The same for the critic's targets, in [0, 1]; omitted: lam."""
    length_alpha: float | None = None
    """VAPO's alpha, > 0: the policy's lam is clip(1 - 1 / max(alpha T, 1), 0, 1) in a row of T tokens."""
    bootstrap: Literal["none", "truncated"] = "none"
    """Whether rows cut by the token limit are continued by the critic's value."""
    whiten: bool = True
    """Whether advantages are brought to mean 0 and variance 1 over the batch."""
    is_group_relative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_range(self, "gamma", "[0, 1]")
        check_range(self, "lam", "[0, 1]")
        check_range(self, "lam_value", "[0, 1]")
        check_range(self, "length_alpha", "(0, inf)")

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("token_reward", "value", *(("finish_reason",) if self.bootstrap == "truncated" else ()))

    @property
    def optional_keys(self) -> tuple[str, ...]:
        """Read where the batch has them."""
        return ("final_value",) if self.bootstrap == "truncated" else ()

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.whiten else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask, value = batch["loss_mask"], batch["value"]
        reward = batch["token_reward"]
        if self.bootstrap == "truncated":
            reward = reward + self.gamma * self._after_last(batch)
        unscored = masked_sum(reward, mask, -1).isnan()
        lam_value = self.lam if self.lam_value is None else self.lam_value
        advantage, returns = gae(reward, value, mask, self.gamma, lam_value)
        if self.length_alpha is not None:
            lam = 1 - 1 / (self.length_alpha * mask.sum(-1).double()).clamp_min(1)
            advantage, _ = gae(reward, value, mask, self.gamma, lam)
        elif lam_value != self.lam:
            advantage, _ = gae(reward, value, mask, self.gamma, self.lam)
        advantage[unscored] = 0
        returns[unscored] = where0(mask[unscored], value[unscored])
        if self.whiten:
            advantage = whiten(advantage, mask & ~unscored.unsqueeze(-1))
        return Advantages(advantage, returns)

    def _after_last(self, batch: TensorDict) -> torch.Tensor:
        """Returns [N, L] V_(n+1) on the last trainable token of truncated rows, 0 elsewhere."""
        mask = batch["loss_mask"]
        final = batch.get("final_value", None)
        if final is None:
            final = at_last_trainable(batch["value"], mask)
        truncated = (batch["finish_reason"] == FinishReason.LENGTH).unsqueeze(-1)
        return where0(is_last_trainable(mask) & truncated, final.unsqueeze(-1))
