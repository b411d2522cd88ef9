"""TIS: truncated importance sampling between trainer and sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.masked import masked_mean
from titanrl.ops.mismatch import Mismatch
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "tis")
@dataclass(frozen=True, slots=True, kw_only=True)
class TIS:
    """Truncated importance weight ``min(u, cap)`` between trainer and sampler, [N, L]; 0 where masked.

        u = exp(clip(x, -20, 20)),   x = old_logprob - sampler_logprob
        level "sequence": x summed over the row

    A loss token whose x is not finite is dropped. With normalize, weights are divided by their mean over
    the finite tokens (level "sequence": over rows), if that exceeds 1e-8.

    Source: truncated importance sampling, Ionides 2008; for samplers, "Your efficient RL framework secretly
    brings you off-policy RL training", 2025. Elsewhere: sequence cap 2 (verl), 5 (SkyRL). Decoupled PPO
    (2110.00641) is ppo_clip with cap = 5.
    """

    level: Literal["token", "sequence"] = "token"
    """Ratio of the token, or product of the ratios over its row."""
    cap: Annotated[float, Range("(0, inf]")] = 2.0
    """Upper bound of a weight."""
    normalize: bool = False
    """Scale the weights to mean 1."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "sampler_logprob")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mismatch = Mismatch.of(batch)
        ratio = mismatch.ratio(self.level)
        weight = ratio.clamp_max(self.cap)
        if self.normalize:
            if self.level == "token":
                mean = masked_mean(weight.double(), mismatch.valid)
            else:
                mean = masked_mean(weight.double().amax(-1), mismatch.valid.any(-1))
            weight = weight / torch.where(mean > 1e-8, mean, 1.0)
        return mismatch.result(weight, mismatch.valid, ratio)
