"""The scalar heads of a critic or reward model: hidden states in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from titanrl.engine.heads.token import Head

__all__ = ["ValueHead"]


class ValueHead(Head):
    """A linear map of the hidden state to K numbers, [K, D] without bias; without temperature.

    A token's value is the number of the head that the query selects, otherwise the weighted sum of all.
    Values are float32 in any compute precision. Under tensor parallelism every rank computes all values from
    the full hidden states, so every rank has the full gradient and nothing is reduced.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        out_features: int = 1
        weights: tuple[float, ...] = (1.0,)
        """Weight of each of the K numbers in the sum."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._weights = config.weights

    def parallelize(self, parallel_dims: Any) -> None:
        """Replicates the weight over tensor-parallel ranks."""
        self._parallelized: bool = True
        mesh = parallel_dims.get_optional_mesh("tp")
        if mesh is not None:
            weight = self.get_parameter("weight")
            replicated = distribute_tensor(weight, mesh, [Replicate()])
            self.register_parameter("weight", torch.nn.Parameter(replicated, weight.requires_grad))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns values [S] of the queried tokens of hidden states [B, L, D], or of all tokens, [B, L]."""
        hidden, weight = (x.to_local() if isinstance(x, DTensor) else x for x in (input, self.weight))
        if self.query is not None:
            hidden = hidden.flatten(0, 1).index_select(0, self.query.gather_index)
        if len(weight) == 1:
            return hidden.float() @ weight[0].float()
        values = hidden.float() @ weight.float().T
        weighted_sum = values @ values.new_tensor(self._weights)
        heads = None if self.query is None else self.query.heads
        if heads is None:
            return weighted_sum
        selected = values.gather(-1, heads.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return torch.where(heads < 0, weighted_sum, selected)
