"""Central differences of a function that stops gradients inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def replaced_detach(detach: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    original = torch.Tensor.detach
    torch.Tensor.detach = detach  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.detach = original  # type: ignore[method-assign]


def central_differences(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, step: float = 1e-6
) -> torch.Tensor:
    """Returns d function / d x for a scalar function, each stop-gradient held at its value in ``x``.

    The n-th ``detach`` of every evaluation answers what the n-th answered at ``x``: that is what a
    stop-gradient means, and the analytic gradient of such a function is the derivative of exactly this.
    """
    original = torch.Tensor.detach
    held: list[torch.Tensor] = []

    def record(tensor: torch.Tensor) -> torch.Tensor:
        held.append(original(tensor).clone())
        return held[-1]

    with torch.no_grad(), replaced_detach(record):
        function(x)
    gradient = torch.zeros_like(x)
    with torch.no_grad():
        for place in range(x.numel()):
            values = []
            for sign in (1, -1):
                moved = x.clone()
                moved.view(-1)[place] += sign * step
                replay = iter(held)
                with replaced_detach(lambda _, replay=replay: next(replay)):  # type: ignore[misc]
                    values.append(function(moved))
            gradient.view(-1)[place] = (values[0] - values[1]) / (2 * step)
    return gradient
