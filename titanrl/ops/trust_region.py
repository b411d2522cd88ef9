"""The policy gradient on the tokens inside a trust region."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from titanrl.ops.masked import where0
from titanrl.ops.ratio import approx_kl, clamped_log_ratio
from titanrl.protocols import TokenLoss

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Tokens", "kept_policy_gradient", "tokens_of"]


class Tokens(NamedTuple):
    """Quantities that define a trust region; [B, L] each, without gradient, 0 where masked."""

    logprob: torch.Tensor
    old_logprob: torch.Tensor
    advantage: torch.Tensor


def tokens_of(logprob: torch.Tensor, batch: TensorDict) -> Tokens:
    """Returns the masked quantities of a batch that holds loss_mask, old_logprob and advantage."""
    mask = batch["loss_mask"]
    return Tokens(
        where0(mask, logprob.detach()), where0(mask, batch["old_logprob"]), where0(mask, batch["advantage"])
    )


def kept_policy_gradient(
    logprob: torch.Tensor, tokens: Tokens, keep: torch.Tensor, ratio_cap: float, mask: torch.Tensor
) -> TokenLoss:
    """Returns ``-sg(min(rho, ratio_cap) keep) A l``, with clip_fraction (not keep) and approx_kl.

    Args:
        logprob: [B, L] with gradient.
        tokens: from tokens_of.
        keep: [B, L] bool, the tokens inside the trust region, true where masked.
        ratio_cap: upper bound of the ratio rho.
        mask: [B, L] bool, loss_mask.
    """
    clamped = clamped_log_ratio(tokens.logprob, tokens.old_logprob, mask)
    weight = where0(keep, clamped.exp().clamp(max=ratio_cap))
    loss = -weight * tokens.advantage * where0(mask, logprob)
    return TokenLoss(loss, {"clip_fraction": (~keep).float(), "approx_kl": approx_kl(clamped)})
