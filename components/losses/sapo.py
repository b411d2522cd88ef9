"""SAPO: soft adaptive policy optimisation, a sigmoid gate in place of PPO's clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio
from titanrl.ops.sigmoid import sigmoid
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "sapo")
@dataclass(frozen=True, slots=True, kw_only=True)
class SAPO:
    """Surrogate with a sigmoid gate on the ratio in place of the clip, per token, [B, L].

        loss = -(4 / tau) sig(tau (rho - 1)) A,  tau = tau_positive where A > 0, else tau_negative

    rho = exp(clip(l - l_old, -c, c)), c = log_ratio_clamp. At rho = 1 the gradient is that of REINFORCE,
    -A; it decays smoothly away from 1. Masked positions get 0. Metrics: approx_kl.

    Source: SAPO 2511.20347.
    """

    tau_positive: Annotated[float, Range("(0, inf)")] = 1.0
    """Steepness of the gate where A > 0."""
    tau_negative: Annotated[float, Range("(0, inf)")] = 1.05
    """Steepness of the gate where A <= 0."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        tau = torch.full_like(advantage, self.tau_negative).masked_fill(advantage > 0, self.tau_positive)
        gate = 4 / tau * sigmoid(tau * (clamped.exp() - 1))
        return TokenLoss(-gate * advantage, {"approx_kl": approx_kl(clamped)})
