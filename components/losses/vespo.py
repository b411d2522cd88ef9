"""VESPO: policy gradient under a smooth weight of the sequence ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import approx_kl, clamped_log_ratio
from titanrl.ops.sequence import sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


LOG_WEIGHT = (math.log(1e-8), 20.0)
"""Bounds of a row's summed log-ratio, nats."""


@register("loss", "vespo")
@dataclass(frozen=True, slots=True, kw_only=True)
class VESPO:
    """Policy gradient under a smooth weight of the sequence ratio, per token, [B, L].

        s    = clip( sum_t m clip(l - l_old, -20, 20), log 1e-8, 20 ),  w = exp(s)
        phi  = exp(lambda + k s - lambda w),  the positive pair where A >= 0, else the negative one
        loss = -sg(phi) A l

    phi is 1 at w = 1 and falls to 0 for small and for large w. Masked positions get 0.
    Metrics: approx_kl = exp(d) - 1 - d per token.

    Source: VESPO 2602.10693 (variational sequence-level soft policy optimisation).
    """

    k_positive: Annotated[float, Range("(0, inf)")] = 2.0
    """Exponent k of w where A >= 0."""
    lambda_positive: Annotated[float, Range("(0, inf)")] = 3.0
    """Decay rate lambda in w where A >= 0."""
    k_negative: Annotated[float, Range("(0, inf)")] = 3.0
    """Exponent k of w where A < 0."""
    lambda_negative: Annotated[float, Range("(0, inf)")] = 2.0
    """Decay rate lambda in w where A < 0."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_logprob", "advantage")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        logprob, advantage = where0(mask, policy.logprob), where0(mask, batch["advantage"])
        clamped = clamped_log_ratio(logprob.detach(), batch["old_logprob"], mask)
        total = sequence_sum(clamped, mask).clamp(*LOG_WEIGHT)
        positive = (self.lambda_positive + self.k_positive * total - self.lambda_positive * total.exp()).exp()
        negative = (self.lambda_negative + self.k_negative * total - self.lambda_negative * total.exp()).exp()
        weight = torch.where(advantage >= 0, positive, negative)
        return TokenLoss(-weight * advantage * logprob, {"approx_kl": approx_kl(clamped)})
