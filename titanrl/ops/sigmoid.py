"""The logistic function with an accurate gradient."""

from __future__ import annotations

import torch

__all__ = ["sigmoid"]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Returns ``1 / (1 + exp(-x))`` elementwise, whose gradient keeps its digits where it is close to 1.

    As ``exp(log sig(x))``, which has the gradient ``sig(x) sig(-x)``. That of ``torch.sigmoid`` is
    ``y (1 - y)``: at x = 15, the difference costs a sixth of it in float32.
    """
    return torch.nn.functional.logsigmoid(x).exp()
