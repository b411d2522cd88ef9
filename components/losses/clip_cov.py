"""Clip-Cov: PPO's surrogate without the tokens whose update would reduce the entropy most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.covariance import group_covariance, largest_in_group
from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, clipped_surrogate
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "clip_cov")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCov:
    """Clipped surrogate of PPO with high-covariance tokens dropped, per token, [B, L].

        cov_t = (A_t - mean A)(l_t - mean l),  means over the loss tokens of the group, no gradient
        k     = max(1, floor(fraction * tokens of the group))
        loss  = 0 on the k candidates of largest cov, else that of ppo_clip
        candidates: cov_low < cov_t < cov_high, and not already clipped by PPO

    The covariance uses the unscaled advantage. Ties are broken by row-major order. Masked positions get
    0.
    Metrics: cov_fraction (dropped by covariance), clip_fraction, approx_kl.

    Source: 2505.22617. Deviations: the covariance is taken per group instead of per batch, so that the
    result does not depend on micro-batches; the largest candidates are dropped instead of random ones,
    because components use no random numbers.
    """

    clip_low: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the lower bound of the ratio from 1."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.2
    """Distance of the upper bound of the ratio from 1."""
    fraction: Annotated[float, Range("(0, 1]")] = 2e-4
    """Fraction of a group's tokens to drop; at least one token where there is a candidate."""
    cov_low: Annotated[float, Range("[-inf, inf]")] = 1.0
    """Covariance above which a token is a candidate."""
    cov_high: Annotated[float, Range("[-inf, inf]")] = 5.0
    """Covariance below which a token is a candidate; must be > cov_low."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage", "group_id")
    couples_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.cov_low < self.cov_high:
            raise ValueError(f"cov_low must be < cov_high, got {self.cov_low} and {self.cov_high}.")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask, group_id = batch["loss_mask"], batch["group_id"]
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        advantage = where0(mask, batch["advantage"])
        surrogate, clipped = clipped_surrogate(clamped.exp(), advantage, self.clip_low, self.clip_high)
        cov = group_covariance(advantage, policy.logprob, mask, group_id)
        candidate = mask & ~clipped & (cov > self.cov_low) & (cov < self.cov_high)
        dropped = largest_in_group(cov, candidate, self.fraction, mask, group_id)
        metrics = {
            "cov_fraction": dropped.float(),
            "clip_fraction": clipped.float(),
            "approx_kl": approx_kl(clamped),
        }
        return TokenLoss(where0(~dropped, -surrogate), metrics)
