"""KL-Cov: a penalty on the log-ratio of the tokens whose update would reduce the entropy most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.covariance import group_covariance, largest_in_group
from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "kl_cov")
@dataclass(frozen=True, slots=True, kw_only=True)
class KLCov:
    """Unclipped surrogate with a log-ratio penalty on high-covariance tokens, per token, [B, L].

        loss  = -rho A + coefficient |d| [t among the k largest cov of its group],  d = clip(l - l_old, -c, c)
        cov_t = (A_t - mean A)(l_t - mean l),  means over the loss tokens of the group, no gradient
        k     = max(1, floor(fraction * tokens of the group))

    rho = exp(d), c = log_ratio_clamp. Ties are broken by row-major order. The penalty is part of the
    token's loss and is averaged with it. Masked positions get 0. Metrics: cov_fraction (penalised tokens),
    approx_kl.

    Source: 2505.22617. Deviation: the covariance is taken per group instead of per batch, so that the
    result does not depend on micro-batches.
    """

    fraction: Annotated[float, Range("(0, 1]")] = 2e-4
    """Fraction of a group's tokens to penalise; at least one token."""
    coefficient: Annotated[float, Range("[0, inf)")] = 0.1
    """Coefficient of the penalty."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage", "group_id")
    couples_group: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, group_id = batch["loss_mask"], batch["group_id"]
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        advantage = where0(mask, batch["advantage"])
        cov = group_covariance(advantage, policy.logprob, mask, group_id)
        penalised = largest_in_group(cov, mask, self.fraction, mask, group_id)
        loss = self.coefficient * where0(penalised, clamped.abs()) - clamped.exp() * advantage
        return TokenLoss(loss, {"cov_fraction": penalised.float(), "approx_kl": approx_kl(clamped)})
