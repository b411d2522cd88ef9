"""Kernels over rows of logits: statistics for the forward pass, gradient for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["EAGER", "Kernels", "RowStatistics", "row_gradient", "row_statistics"]

CACHED_NUMBERS = 2**19
"""Numbers that fit into a CPU's cache: eager kernels work on so many at a time."""


class RowStatistics(NamedTuple):
    """Sums over a row, with z = logits / temperature."""

    row_max: torch.Tensor
    """[C, 1] largest z of the row."""
    sum_exp: torch.Tensor
    """[C, 1] sum of exp(z - row_max)."""
    sum_exp_logit: torch.Tensor
    """[C, 1] sum of exp(z - row_max) * z."""
    sum_sq_exp: torch.Tensor
    """[C, 1] sum of exp(z - row_max)^2."""


def row_statistics(logits: torch.Tensor, temperature: float) -> RowStatistics:
    """Returns the sums from which logsumexp, entropy and sum of squared probabilities follow.

    Args:
        logits: [C, V/tp] any float.
        temperature: > 0.
    """
    z = _scaled(logits, temperature)
    row_max = z.amax(-1, keepdim=True)
    e = (z - row_max).exp_()
    sum_exp_logit, sum_sq_exp = torch.linalg.vecdot(e, z), torch.linalg.vecdot(e, e)
    return RowStatistics(
        row_max, e.sum(-1, keepdim=True), sum_exp_logit.unsqueeze(-1), sum_sq_exp.unsqueeze(-1)
    )


def row_gradient(
    logits: torch.Tensor,
    temperature: float,
    logsumexp: torch.Tensor,
    grad_logprob: torch.Tensor,
    entropy: torch.Tensor,
    grad_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Returns [C, V/tp] ``-pi (g + g_H (log pi + H)) / temperature`` in the logits' dtype.

    That is d loss / d logits without the ``+ g / temperature`` at the queried ids.

    Args:
        logits: [C, V/tp].
        temperature: > 0.
        logsumexp: [C, 1] float32 of logits / temperature.
        grad_logprob: [C, 1] float32 g, summed over the queried ids.
        entropy: [C, 1] float32 H.
        grad_entropy: [C, 1] float32 g_H; None: 0.
    """
    log_pi = _scaled(logits, temperature) - logsumexp
    if grad_entropy is None:
        gradient = log_pi.exp_().mul_(grad_logprob / -temperature)
    else:
        slope = (log_pi + entropy).mul_(grad_entropy).add_(grad_logprob)
        gradient = log_pi.exp_().mul_(slope).div_(-temperature)
    return gradient.to(logits.dtype)


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits.float() if temperature == 1 else logits.float() / temperature


class Kernels(NamedTuple):
    """The two row kernels, eager or compiled."""

    statistics: Callable[[torch.Tensor, float], RowStatistics]
    gradient: Callable[..., torch.Tensor]
    """May overwrite the logits."""


def _statistics_by_rows(logits: torch.Tensor, temperature: float) -> RowStatistics:
    parts = [row_statistics(rows, temperature) for rows in _cached_rows(logits)]
    return RowStatistics(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _gradient_by_rows(logits: torch.Tensor, temperature: float, *columns: Any) -> torch.Tensor:
    """Overwrites ``logits`` with the gradient and returns it."""
    first = 0
    for rows in _cached_rows(logits):
        part = slice(first, first + len(rows))
        own: list[Any] = [None if column is None else column[part] for column in columns]
        rows.copy_(row_gradient(rows, temperature, *own))
        first += len(rows)
    return logits


def _cached_rows(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = CACHED_NUMBERS // logits.shape[-1] if logits.device.type == "cpu" else len(logits)
    return torch.split(logits, max(1, rows))


EAGER = Kernels(_statistics_by_rows, _gradient_by_rows)
