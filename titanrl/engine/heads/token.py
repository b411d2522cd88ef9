"""Heads that compute only the queried positions: a policy's gives log-probs, or logits for sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torch.distributed.tensor import DTensor, Partial
from torchtitan.models.common import Linear

from titanrl.ops import row_kernels
from titanrl.ops.logprob import token_statistics

__all__ = ["Head", "HeadQuery", "TokenHead", "compiled_kernels"]


class HeadQuery(NamedTuple):
    """The positions and token ids for which a forward pass computes log-probs instead of logits."""

    gather_index: torch.Tensor
    """[S] int64, tokens of the packed sequence whose hidden states go through the head."""
    ids: torch.Tensor
    """[S, K] int64, token ids whose log-probs are computed."""
    temperature: float = 1.0
    kernels: row_kernels.Kernels = row_kernels.EAGER
    top_k: int = 0
    """Number of top-k tokens to return too."""
    heads: torch.Tensor | None = None
    """[S] int64, index of the scalar head, -1: their weighted sum; None: the weighted sum everywhere."""


class Head(Linear):  # type: ignore[misc]  # torchtitan has no types
    """TorchTitan's linear head with a query that its forward computes, inside FSDP's hooks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.query: HeadQuery | None = None
        """The query of the next forward pass; None: logits or values of all positions."""

    @contextmanager
    def with_query(self, query: HeadQuery) -> Iterator[None]:
        """Makes the forward compute ``query`` within the block."""
        self.query = query
        try:
            yield
        finally:
            self.query = None


class TokenHead(Head):
    """A policy's lm_head, which computes TokenStatistics for a query.

    Under tensor parallelism its weight stays sharded on V, [V/tp, D]; outputs are replicated over tp.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        dtype: torch.dtype | None = None
        """Precision of logits and log-probs; None: the compute precision of the model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dtype = config.dtype
        self._decoding_weight: torch.Tensor | None = None
        self._group: Any = None
        self._vocab_start = 0

    def parallelize(self, parallel_dims: Any) -> None:
        """Shards the weight; the forward is not wrapped, as it returns more than one sharded tensor."""
        self._parallelized: bool = True
        self._distribute_states(parallel_dims)
        mesh = parallel_dims.get_optional_mesh("tp")
        if mesh is not None:
            self._group = mesh.get_group()
            # DTensor shards like torch.chunk: every rank but the last has the rounded-up size.
            self._vocab_start = mesh.get_local_rank() * -(-self.out_features // mesh.size())

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Keeps a copy of the weight in the head's precision; the weight must not change within the block."""
        if self.dtype is not None:
            weight = self.weight
            self._decoding_weight = (weight.to_local() if isinstance(weight, DTensor) else weight).to(
                self.dtype
            )
        try:
            yield
        finally:
            self._decoding_weight = None

    def forward(self, input: torch.Tensor) -> Any:
        """Returns logits [B, L, V] for hidden states [B, L, D], or the TokenStatistics of the query.

        Under tensor parallelism logits are gathered over V.
        """
        hidden, weight = input, self.weight
        if isinstance(weight, DTensor):
            weight = weight.to_local()
        if isinstance(hidden, DTensor):
            # Each rank's slice of V contributes to the hidden states' gradient.
            placements = [Partial()] * hidden.device_mesh.ndim
            hidden = hidden.to_local(grad_placements=placements)
        query = self.query
        if query is None:
            if self._decoding_weight is not None:
                weight = self._decoding_weight
            dtype = self.dtype or weight.dtype
            logits = torch.nn.functional.linear(hidden.to(dtype), weight.to(dtype))
            return logits if self._group is None else _gather(logits, self._group)
        return token_statistics(
            hidden.flatten(0, 1).index_select(0, query.gather_index),
            weight,
            query.ids,
            temperature=query.temperature,
            group=self._group,
            vocab_start=self._vocab_start,
            kernels=query.kernels,
            top_k=query.top_k,
            dtype=self.dtype,
        )


def compiled_kernels(backend: str) -> row_kernels.Kernels:
    """Returns the row kernels, compiled for any number of tokens."""
    return row_kernels.Kernels(
        torch.compile(row_kernels.row_statistics, fullgraph=True, dynamic=True, backend=backend),
        torch.compile(row_kernels.row_gradient, fullgraph=True, dynamic=True, backend=backend),
    )


def _gather(logits: torch.Tensor, group: Any) -> torch.Tensor:
    import torch.distributed._functional_collectives as funcol

    return funcol.all_gather_tensor(logits.contiguous(), logits.ndim - 1, group)
