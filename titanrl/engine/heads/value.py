"""The scalar heads of a critic or reward model: trained hidden states in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from titanrl.engine.heads.token import Head

__all__ = ["ValueHead"]


class ValueHead(Head):
    """A linear map of the hidden state to K numbers, [K, D] without bias; it knows no temperature.

    A token's value is the number that its row's labels are about, else their weighted sum; of one, itself.
    Values are float32 whatever the compute precision. Under tensor parallelism every rank computes all of
    them from the whole hidden states, so the gradient is each rank's own already and nothing is reduced.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        out_features: int = 1
        weights: tuple[float, ...] = (1.0,)
        """Of each number in the sum, K."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._weights = config.weights

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
        if len(weight) == 1:
            return hidden.float() @ weight[0].float()
        values = hidden.float() @ weight.float().T
        summed = values @ values.new_tensor(self._weights)
        heads = None if self.asked is None else self.asked.heads
        if heads is None:
            return summed
        own = values.gather(-1, heads.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return torch.where(heads < 0, summed, own)
