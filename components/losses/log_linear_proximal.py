"""Decoupled PPO with a proximal policy interpolated from the age of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, clipped_surrogate
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "log_linear_proximal")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinearProximal:
    """Clipped surrogate around a proximal policy between the sampler's and the current one, [B, L].

        loss   = -sg(min(exp(l_prox - l_old), cap)) min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        l_prox = sg(l_old + share (l - l_old)),   r = exp(l - l_prox)
        share  = clip((V - 1 - v) / (V - v), 0, 1) where 0 <= v < V, else 0

    v is policy_version_token, V current_version. Tokens of the current or the previous version have share
    0: ppo_clip. The interpolation replaces the forward pass that decoupled PPO needs for l_prox. l - l_old is
    clamped to [-c, c], c = log_ratio_clamp. Masked positions get 0. Metrics: clip_fraction, approx_kl,
    proximal_share (share).

    l_old must be the sampler's: [algorithm] old_logprob = "sampler". Source: AReaL's log-linear proximal
    policy. Deviation: AReaL drops tokens above the cap; here their weight is truncated.
    """

    clip_low: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the lower bound of the ratio from 1."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.2
    """Distance of the upper bound of the ratio from 1."""
    cap: Annotated[float, Range("(0, inf]")] = 5.0
    """Upper bound of the weight of the proximal policy against the sampler."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = (
        "old_logprob",
        "advantage",
        "policy_version_token",
        "current_version",
    )
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        share = where0(mask, self._share(batch))
        proximal = share * clamped.detach()
        surrogate, clipped = clipped_surrogate(
            (clamped - proximal).exp(), advantage, self.clip_low, self.clip_high
        )
        weight = proximal.exp().clamp(max=self.cap)
        metrics = {
            "clip_fraction": clipped.float(),
            "approx_kl": approx_kl(clamped),
            "proximal_share": share,
        }
        return TokenLoss(-weight * surrogate, metrics)

    def _share(self, batch: TensorDict) -> torch.Tensor:
        """Returns [B, L] float32, the place of the proximal policy between the sampler's (0) and l (1)."""
        version, current = batch["policy_version_token"], batch["current_version"][:, None]
        is_older = (version >= 0) & (version < current)
        age = where0(is_older, current - version).float()
        return where0(is_older, ((age - 1) / age.clamp_min(1)).clamp(0, 1))
