"""A policy's head with a critic's head on the same backbone: log-probs and values of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from titanrl.engine.heads.token import TokenHead
from titanrl.engine.heads.value import ValueHead
from titanrl.ops.logprob import TokenStatistics

__all__ = ["VALUE", "ActorCriticOutput", "ActorCriticHead"]

VALUE = "lm_head.value"
"""Name of the critic's head in a policy: not sampled from and not exported."""


class ActorCriticOutput(NamedTuple):
    """Outputs of both heads for the queried tokens."""

    tokens: TokenStatistics
    value: torch.Tensor
    """[S] float32."""


class ActorCriticHead(TokenHead):
    """A policy's lm_head that also holds a critic's head; without a query it gives the policy's logits."""

    @dataclass(kw_only=True, slots=True)
    class Config(TokenHead.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.value = ValueHead(ValueHead.Config(in_features=config.in_features))

    def parallelize(self, parallel_dims: Any) -> None:
        """Shards the policy's weight and replicates the critic's."""
        super().parallelize(parallel_dims)
        self.value.parallelize(parallel_dims)

    def forward(self, input: torch.Tensor) -> Any:
        """Returns logits [B, L, V] for hidden states [B, L, D], or the ActorCriticOutput of the query."""
        output = super().forward(input)
        if self.query is None:
            return output
        with self.value.with_query(self.query):
            return ActorCriticOutput(output, self.value(input))
