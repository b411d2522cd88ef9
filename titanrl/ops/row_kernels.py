"""What is done to rows of logits beside matrix products: two kernels, which compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["EAGER", "Kernels", "RowStatistics", "row_gradient", "row_statistics"]

CACHED = 2**19
"""Numbers that a CPU keeps at hand: so many are worked on at a time, where no compiler sees to it."""


class RowStatistics(NamedTuple):
    peak: torch.Tensor
    """[C, 1] largest z of the row."""
    total: torch.Tensor
    """[C, 1] sum of e = exp(z - peak)."""
    weighted: torch.Tensor
    """[C, 1] sum of e * z."""
    squares: torch.Tensor
    """[C, 1] sum of e^2."""


def row_statistics(logits: torch.Tensor, temperature: float) -> RowStatistics:
    """Returns the sums from which log-normaliser, entropy and sum of squares follow, z = logits /
    temperature.

    Args:
        logits: [C, V/tp] any float. temperature: > 0.
    """
    z = _scaled(logits, temperature)
    peak = z.amax(-1, keepdim=True)
    e = (z - peak).exp_()
    weighted, squares = torch.linalg.vecdot(e, z), torch.linalg.vecdot(e, e)
    return RowStatistics(peak, e.sum(-1, keepdim=True), weighted.unsqueeze(-1), squares.unsqueeze(-1))


def row_gradient(
    logits: torch.Tensor,
    temperature: float,
    log_normaliser: torch.Tensor,
    logprob_gradient: torch.Tensor,
    entropy: torch.Tensor,
    entropy_gradient: torch.Tensor | None,
) -> torch.Tensor:
    """Returns [C, V/tp] ``-pi (g + g_H (log pi + H)) / temperature`` in the logits' dtype.

    That is d loss / d logits but for the ``+ g / temperature`` at the chosen ids.

    Args:
        log_normaliser, logprob_gradient (summed over ids), entropy, entropy_gradient: [C, 1] float32.
    """
    log_pi = _scaled(logits, temperature) - log_normaliser
    if entropy_gradient is None:
        gradient = log_pi.exp_().mul_(logprob_gradient / -temperature)
    else:
        slope = (log_pi + entropy).mul_(entropy_gradient).add_(logprob_gradient)
        gradient = log_pi.exp_().mul_(slope).div_(-temperature)
    return gradient.to(logits.dtype)


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits.float() if temperature == 1 else logits.float() / temperature


class Kernels(NamedTuple):
    """The two row kernels, as they are or compiled."""

    statistics: Callable[[torch.Tensor, float], RowStatistics]
    gradient: Callable[..., torch.Tensor]
    """May overwrite the logits."""


def _statistics_by_rows(logits: torch.Tensor, temperature: float) -> RowStatistics:
    parts = [row_statistics(rows, temperature) for rows in _cached_rows(logits)]
    return RowStatistics(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _gradient_by_rows(logits: torch.Tensor, temperature: float, *columns: Any) -> torch.Tensor:
    """Returns ``logits`` itself, overwritten."""
    first = 0
    for rows in _cached_rows(logits):
        part = slice(first, first + len(rows))
        mine: list[Any] = [None if column is None else column[part] for column in columns]
        rows.copy_(row_gradient(rows, temperature, *mine))
        first += len(rows)
    return logits


def _cached_rows(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = CACHED // logits.shape[-1] if logits.device.type == "cpu" else len(logits)
    return torch.split(logits, max(1, rows))


EAGER = Kernels(_statistics_by_rows, _gradient_by_rows)
