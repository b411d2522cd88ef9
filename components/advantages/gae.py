"""GAE: generalised advantage estimation with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.masked import masked_sum, where0, whiten
from titanrl.ops.returns import gae
from titanrl.ops.sequence import at_last_loss_token, is_last_loss_token
from titanrl.protocols import Advantages, FinishReason
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "gae")
@dataclass(frozen=True, slots=True, kw_only=True)
class GAE:
    """Exponentially weighted temporal-difference errors, and the critic's targets ``returns``, [N, L]; 0
    where masked.

    Over the loss tokens t1 < ... < tn of a row, from right to left:

        delta_k = token_reward_k + gamma V_(k+1) - V_k,    A_k = delta_k + gamma lam A_(k+1),   A_(n+1) = 0
        returns = A^(lam_value) + V,    advantage = A^(lam), whitened over the batch unless whiten is false

    V_(n+1) is 0 for a finished row. With `bootstrap = "truncated"`, a row that ended at its token limit
    uses final_value where the batch has it, else V_n, a one-step approximation; aborted rows are not
    bootstrapped. The column after the last loss token is never read, because it is padding or an
    observation. Observations between loss tokens are skipped. A row with a token reward of NaN is unscored:
    it enters no statistic, its advantage is 0 and its returns are V, so the critic learns nothing from it.

    Source: 1506.02438; length_alpha and lam_value: VAPO 2504.05118. Elsewhere: values at masked tokens are
    set to 0 (OpenRLHF, slime) or read (SkyRL, torchtune); both change the credit assignment.
    """

    gamma: Annotated[float, Range("[0, 1]")] = 1.0
    """Discount per loss token."""
    lam: Annotated[float, Range("[0, 1]")] = 0.95
    """Exponential weight of later temporal-difference errors in the policy's advantage."""
    lam_value: Annotated[float | None, Range("[0, 1]")] = None
    """The same for the critic's targets; omitted: lam. VAPO uses 1."""
    length_alpha: Annotated[float | None, Range("(0, inf)")] = None
    """VAPO's alpha: in a row of T loss tokens the policy's lam is clip(1 - 1 / max(alpha T, 1), 0, 1);
    omitted: lam."""
    bootstrap: Literal["none", "truncated"] = "none"
    """truncated: continue rows that ended at the token limit with the critic's value."""
    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the batch."""
    is_group_relative: ClassVar[bool] = False

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("token_reward", "value", *(("finish_reason",) if self.bootstrap == "truncated" else ()))

    @property
    def optional_keys(self) -> tuple[str, ...]:
        """Batch keys that are read where they are present."""
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
        """Returns [N, L] V_(n+1) at the last loss token of truncated rows, 0 elsewhere."""
        mask = batch["loss_mask"]
        final = batch.get("final_value", None)
        if final is None:
            final = at_last_loss_token(batch["value"], mask)
        truncated = (batch["finish_reason"] == FinishReason.LENGTH).unsqueeze(-1)
        return where0(is_last_loss_token(mask) & truncated, final.unsqueeze(-1))
