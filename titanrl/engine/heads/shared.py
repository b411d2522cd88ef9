"""A policy's head with its critic's beside it: log-probs and values of the same hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from titanrl.engine.heads.token import TokenHead
from titanrl.engine.heads.value import ValueHead
from titanrl.ops.logprob import TokenStatistics

__all__ = ["VALUE", "ActorCriticOutput", "ActorCriticHead"]

VALUE = "lm_head.value"
"""Name of the critic's head in a policy: no part of what is sampled from or exported."""


class ActorCriticOutput(NamedTuple):
    """What both heads say of the tokens asked for."""

    tokens: TokenStatistics
    value: torch.Tensor
    """[S] float32."""


class ActorCriticHead(TokenHead):
    """A policy's lm_head that holds a critic's head too; who asks for logits sees the policy's alone."""

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
        """Returns logits [B, L, V] for hidden states [B, L, D], or the Answer to what is asked."""
        found = super().forward(input)
        if self.asked is None:
            return found
        with self.value.request(self.asked):
            return ActorCriticOutput(found, self.value(input))
