"""The difference between trainer and rollout log-probs, and the result of a correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from titanrl.ops.masked import masked_mean, where0
from titanrl.protocols import CorrectionResult

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["CLAMP", "Mismatch", "correction_result"]

CLAMP = 20.0
"""Bound of a log-ratio before exp, nats."""


class Mismatch(NamedTuple):
    """x = old_logprob - sampler_logprob on the loss tokens where it is finite."""

    loss_mask: torch.Tensor
    """[N, L] bool."""
    valid: torch.Tensor
    """[N, L] bool, loss tokens with finite x."""
    log_ratio: torch.Tensor
    """[N, L] float32, x in nats; 0 where not valid."""

    @classmethod
    def of(cls, batch: TensorDict) -> Mismatch:
        """Returns the mismatch of a batch that holds loss_mask, old_logprob and sampler_logprob."""
        mask = batch["loss_mask"]
        log_ratio = where0(mask, batch["old_logprob"]) - where0(mask, batch["sampler_logprob"])
        valid = mask & log_ratio.isfinite()
        return cls(mask, valid, where0(valid, log_ratio))

    def ratio(self, level: Literal["token", "sequence"] = "token") -> torch.Tensor:
        """Returns [N, L] ``exp(clip(x))``, or ``exp(clip(sum x))`` of the row; 0 where not valid."""
        exponent = self.log_ratio
        if level == "sequence":
            exponent = exponent.sum(-1, keepdim=True, dtype=torch.float64).float()
        return where0(self.valid, exponent.clamp(-CLAMP, CLAMP).exp())

    def result(self, weight: torch.Tensor, keep: torch.Tensor, ratio: torch.Tensor) -> CorrectionResult:
        """Returns ``weight`` [N, L] where ``keep`` ([N, L] or [N, 1]) is true on valid tokens, with metrics.

        Metrics: those of correction_result(); ratio_mean and ratio_max of ``ratio`` before truncation;
        mismatch_kl = mean of exp(x) - 1 - x, nats.
        """
        base = correction_result(self.loss_mask, weight, keep & self.valid)
        clamped = self.log_ratio.clamp(-CLAMP, CLAMP).double()
        metrics = {
            "ratio_mean": masked_mean(ratio.double(), self.valid),
            "ratio_max": where0(self.valid, ratio).max() if ratio.numel() else ratio.new_zeros(()),
            "mismatch_kl": masked_mean(torch.expm1(clamped) - clamped, self.valid),
        }
        return base._replace(metrics=base.metrics | metrics)


def correction_result(loss_mask: torch.Tensor, weight: torch.Tensor, keep: torch.Tensor) -> CorrectionResult:
    """Returns ``weight`` and ``keep`` (both broadcast to [N, L]) on the loss tokens, with metrics.

    dropped_fraction = 1 - kept / M; effective_sample_size = (sum w)^2 / (M sum w^2), as a fraction of the M
    loss tokens. Both are NaN without a loss token.
    """
    keep = (keep & loss_mask).clone()
    weight = where0(keep, weight.float().expand_as(keep))
    tokens, kept = loss_mask.sum().double(), keep.sum().double()
    total, squares = weight.sum(dtype=torch.float64), weight.double().square().sum()
    efficiency = total.square() / torch.where(squares > 0, tokens * squares, tokens)
    return CorrectionResult(
        weight, keep, {"dropped_fraction": 1 - kept / tokens, "effective_sample_size": efficiency}
    )
