"""FIPO: PPO's clipped surrogate, weighted by how the rest of the response has moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio, clipped_surrogate
from titanrl.ops.sequence import discounted_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "fipo")
@dataclass(frozen=True, slots=True, kw_only=True)
class FIPO:
    """Clipped surrogate times the influence of a token on its future, per token, [B, L].

        loss = sg(f) ppo_clip
        F_k  = d_k [rho_k <= ratio_cap] + 2^(-1 / half_life) F_(k+1),   over the row's loss tokens
        f    = clip(exp(F), influence_low, influence_high), within [0.8, 1] where A < 0 and rho > safety_ratio

    d = clip(l - l_old, -c, c), c = log_ratio_clamp, rho = exp(d). Masked tokens between loss tokens take no
    distance. Masked positions get 0. Metrics: clip_fraction, approx_kl, influence (f).

    Source: FIPO 2603.19835. The authors' 32B recipe sets ratio_cap = 10; influence_low = 0.8 is the
    two-sided setting.
    """

    half_life: Annotated[float, Range("(0, inf)")] = 32.0
    """Distance at which a later token counts half, loss tokens."""
    influence_low: Annotated[float, Range("[0, 1]")] = 1.0
    """Lower bound of f."""
    influence_high: Annotated[float, Range("[1, inf)")] = 1.2
    """Upper bound of f."""
    safety_ratio: Annotated[float, Range("(0, inf]")] = 4.0
    """Ratio above which f is within [0.8, 1] where A < 0."""
    clip_low: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the lower bound of the ratio from 1."""
    clip_high: Annotated[float, Range("(0, inf)")] = 0.2
    """Distance of the upper bound of the ratio from 1."""
    ratio_cap: Annotated[float | None, Range("(1 + clip_high, inf)")] = None
    """Upper bound of the unclipped ratio, > 1 + clip_high; tokens above it do not enter F. Omitted: off."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound of the log-ratio before exp, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        advantage = where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        ratio = clamped.exp()
        surrogate, clipped = clipped_surrogate(
            ratio, advantage, self.clip_low, self.clip_high, self.ratio_cap
        )
        influence = self._influence(clamped.detach(), ratio.detach(), advantage, mask)
        metrics = {
            "clip_fraction": clipped.float(),
            "approx_kl": approx_kl(clamped),
            "influence": where0(mask, influence),
        }
        return TokenLoss(-influence * surrogate, metrics)

    def _influence(
        self, moved: torch.Tensor, ratio: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Returns [B, L] f, without gradient."""
        counted = moved if self.ratio_cap is None else where0(ratio <= self.ratio_cap, moved)
        future = discounted_sum(counted, mask, 2.0 ** (-1.0 / self.half_life))
        influence = future.exp().clamp(self.influence_low, self.influence_high)
        if self.safety_ratio == math.inf:
            return influence
        is_risky = (advantage < 0) & (ratio > self.safety_ratio)
        return torch.where(is_risky, influence.clamp(0.8, 1.0), influence)
