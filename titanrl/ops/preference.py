"""Preference pairs: rows 2i = chosen, 2i + 1 = rejected; both rows carry the loss of their pair."""

from __future__ import annotations

import torch

from titanrl.ops.masked import where0

__all__ = ["per_row", "valid_pairs", "shared_length_weight", "smoothed_sigmoid_loss", "split_pairs"]


def split_pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``x`` [B, ...] as (chosen [B/2, ...], rejected [B/2, ...]).

    Raises:
        ValueError: B is odd.
    """
    if x.shape[0] % 2:
        raise ValueError(
            f"preference pairs need an even number of rows, got {x.shape[0]}; keep pairs together."
        )
    return x[0::2], x[1::2]


def valid_pairs(mask: torch.Tensor) -> torch.Tensor:
    """Returns [B/2, 1] bool, true where both rows of the pair have a loss token."""
    chosen, rejected = split_pairs(mask.any(-1, keepdim=True))
    return chosen & rejected


def per_row(pair_value: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Returns [B, 1], the value of each pair [B/2, 1] on both its rows; 0, no gradient, where not valid."""
    return where0(valid, pair_value).repeat_interleave(2, dim=0)


def smoothed_sigmoid_loss(logit: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Returns ``-(1 - e) log sig(h) - e log sig(-h)``, e the probability that the label is wrong."""
    loss = -torch.nn.functional.logsigmoid(logit)
    if label_smoothing == 0:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * torch.nn.functional.logsigmoid(-logit)


def shared_length_weight(mask: torch.Tensor, rest: float) -> torch.Tensor:
    """Returns [B, L] float32: 1 on a row's first min(nc, nr) loss tokens, ``rest`` on the later ones."""
    chosen, rejected = split_pairs(mask.sum(-1, keepdim=True))
    shorter = torch.minimum(chosen, rejected).repeat_interleave(2, dim=0)
    return torch.where(mask.cumsum(-1) <= shorter, 1.0, rest)
