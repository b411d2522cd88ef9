"""Heads that answer for trained positions only; a policy's gives log-probs, and logits to whoever samples."""

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
    """What a forward pass shall return instead of logits."""

    chosen: torch.Tensor
    """[S] int64, tokens of the line whose hidden states go through the head."""
    ids: torch.Tensor
    """[S, K] int64, token ids whose log-probs are wanted."""
    temperature: float = 1.0
    kernels: row_kernels.Kernels = row_kernels.EAGER
    top_k: int = 0
    """Likeliest tokens that are wanted too."""
    heads: torch.Tensor | None = None
    """[S] int64, which of several scalar heads answers, -1: their weighted sum; None: the sum everywhere."""


class Head(Linear):  # type: ignore[misc]  # torchtitan has no types
    """TorchTitan's linear head that answers a Request within its forward, so that FSDP's hooks around it
    fit."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.asked: HeadQuery | None = None
        """What the forward is to answer; None: everything, for all positions."""

    @contextmanager
    def request(self, request: HeadQuery) -> Iterator[None]:
        """Within the block the forward answers ``request``."""
        self.asked = request
        try:
            yield
        finally:
            self.asked = None


class TokenHead(Head):
    """A policy's lm_head, which answers with TokenStatistics.

    Under tensor parallelism its weight stays sharded on V, [V/tp, D], and answers are replicated over tp.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._group: Any = None
        self._vocab_start = 0

    def parallelize(self, parallel_dims: Any) -> None:
        """Shards the weight; the forward is not wrapped, as it answers with more than one sharded tensor."""
        self._parallelized: bool = True
        self._distribute_states(parallel_dims)
        mesh = parallel_dims.get_optional_mesh("tp")
        if mesh is not None:
            self._group = mesh.get_group()
            # DTensor shards like torch.chunk: every rank but the last has the rounded-up share.
            self._vocab_start = mesh.get_local_rank() * -(-self.out_features // mesh.size())

    def forward(self, input: torch.Tensor) -> Any:
        """Returns logits [B, L, V] for hidden states [B, L, D], or the statistics asked for.

        Under tensor parallelism logits are gathered over V.
        """
        hidden, weight = input, self.weight
        if isinstance(weight, DTensor):
            weight = weight.to_local()
        if isinstance(hidden, DTensor):
            # Each rank's slice of V contributes to the hidden states' gradient.
            placements = [Partial()] * hidden.device_mesh.ndim
            hidden = hidden.to_local(grad_placements=placements)
        request = self.asked
        if request is None:
            logits = torch.nn.functional.linear(hidden, weight)
            return logits if self._group is None else _gather(logits, self._group)
        return token_statistics(
            hidden.flatten(0, 1).index_select(0, request.chosen),
            weight,
            request.ids,
            temperature=request.temperature,
            group=self._group,
            vocab_start=self._vocab_start,
            kernels=request.kernels,
            top_k=request.top_k,
        )


def compiled_kernels(backend: str) -> row_kernels.Kernels:
    """Returns the row kernels compiled for any number of tokens."""
    return row_kernels.Kernels(
        torch.compile(row_kernels.row_statistics, fullgraph=True, dynamic=True, backend=backend),
        torch.compile(row_kernels.row_gradient, fullgraph=True, dynamic=True, backend=backend),
    )


def _gather(logits: torch.Tensor, group: Any) -> torch.Tensor:
    import torch.distributed._functional_collectives as funcol

    return funcol.all_gather_tensor(logits.contiguous(), logits.ndim - 1, group)
