"""PPO's clipped surrogate with clip-higher, dual clip, a ratio cap and a likelihood term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, clipped_surrogate
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "ppo_clip")
@dataclass(frozen=True, slots=True, kw_only=True)
class PPOClip:
    """Clipped surrogate objective of PPO, per token, [B, L].

        rho  = exp(clip(l - l_old, -c, c)),  c = log_ratio_clamp
        J    = min( min(rho, ratio_cap) A,  clip(rho, 1 - clip_low, 1 + clip_high) A )
        J    = max(J, dual_clip A)  where A < 0
        loss = -J + positive_nll [reward > 0] (-l)

    The gradient is -rho A on tokens where the unclipped branch is the minimum and not capped, else 0.
    Masked positions get 0.
    Metrics: clip_fraction (the clipped branch is strictly smaller, so the sign of A counts),
    dual_clip_fraction (the dual bound is strictly active), approx_kl = exp(d) - 1 - d.

    Source: PPO 1707.06347 eq. 7; clip-higher 2503.14476; dual clip 1912.09729; two-sided cap 2505.07291;
    positive NLL 2504.05118. Deviation: positive_nll has the weights of the loss, while the paper divides by
    the number of tokens of correct rows; multiply it by M / M_correct to reproduce the paper.
    """

    clip_low: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the lower bound of the ratio from 1; the PPO paper uses 0.2."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.2
    """Distance of the upper bound of the ratio from 1; DAPO uses 0.28."""
    dual_clip: Annotated[float | None, Range("(1, inf)")] = None
    """Upper bound of the loss in units of |A| where A < 0; omitted: off; verl uses 3.0."""
    ratio_cap: Annotated[float | None, Range("(1 + clip_high, inf)")] = None
    """Upper bound of the unclipped ratio, > 1 + clip_high; omitted: off."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats; tokens beyond it get no gradient."""
    positive_nll: Annotated[float, Range("[0, inf)")] = 0.0
    """Coefficient of the negative log-likelihood on rows with reward > 0; VAPO uses 0.1."""

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("old_logprob", "advantage", *(("reward",) if self.positive_nll else ()))

    @property
    def is_zero_without_advantage(self) -> bool:
        return self.positive_nll == 0

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        surrogate, clipped = clipped_surrogate(
            clamped.exp(), advantage, self.clip_low, self.clip_high, self.ratio_cap
        )
        bounded = torch.zeros_like(clipped)
        if self.dual_clip is not None:
            bound = self.dual_clip * advantage
            bounded = (advantage < 0) & (bound > surrogate)
            surrogate = torch.where(bounded, bound, surrogate)
        loss = -surrogate
        if self.positive_nll:
            positive = mask & (batch["reward"] > 0)[:, None]
            loss = loss - self.positive_nll * where0(positive, policy.logprob)
        metrics = {
            "clip_fraction": clipped.float(),
            "dual_clip_fraction": bounded.float(),
            "approx_kl": approx_kl(clamped),
        }
        return TokenLoss(loss, metrics)
