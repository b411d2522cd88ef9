"""The scalar head of a critic or reward model: trained hidden states in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from titanrl.engine.head import Head

__all__ = ["ValueHead"]


class ValueHead(Head):
    """A linear map of the hidden state to one number, [1, D] without bias; it knows no temperature.

    Values are float32 whatever the compute precision. Under tensor parallelism every rank computes all of
    them from the whole hidden states, so the gradient is each rank's own already and nothing is reduced.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        out_features: int = 1

    def parallelize(self, parallel_dims: Any) -> None:
        """Replicates the weight over tensor-parallel ranks."""
        self._parallelized: bool = True
        mesh = parallel_dims.get_optional_mesh("tp")
        if mesh is not None:
            weight = self.get_parameter("weight")
            shared = distribute_tensor(weight, mesh, [Replicate()])
            self.register_parameter("weight", torch.nn.Parameter(shared, weight.requires_grad))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns values [S] of the requested tokens of hidden states [B, L, D], or of all, [B, L]."""
        hidden, weight = (x.to_local() if isinstance(x, DTensor) else x for x in (input, self.weight))
        if self.asked is not None:
            hidden = hidden.flatten(0, 1).index_select(0, self.asked.chosen)
        return hidden.float() @ weight[0].float()
