"""Keys and values of rows that grow token by token, and the attention that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Cache"]

BLOCK = 64
"""Tokens by which the cache grows."""


class Cache:
    """Keys and values of every layer, [R, kv heads, S, H]; row r holds its position p in slot p.

    Prompts are computed together, then ``repeat`` gives each answer its copy, then each row gets a token at a
    time. Slots past a row's length hold anything and are never read.
    """

    def __init__(self, num_layers: int) -> None:
        self._keys: list[torch.Tensor] = [torch.empty(0)] * num_layers
        self._values: list[torch.Tensor] = [torch.empty(0)] * num_layers
        self._lengths: torch.Tensor | None = None
        self._rows = torch.empty(0)
        self._mask = torch.empty(0)
        self._span = 0

    @contextmanager
    def installed(self, attentions: list[Any]) -> Iterator[None]:
        """Within the block the inner attention of layer i fills and reads this cache."""
        for layer, attention in enumerate(attentions):
            attention.forward = self._attention_of(layer)
        try:
            yield
        finally:
            for attention in attentions:
                del attention.forward

    def repeat(self, rows: torch.Tensor, lengths: torch.Tensor) -> None:
        """Makes the rows that decode: row r continues prompt ``rows[r]``, ``lengths[r]`` tokens long."""
        self._select(rows)
        self._lengths = lengths
        self._rows = torch.arange(len(rows), device=rows.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Drops all rows but ``rows``, [R'] int64."""
        assert self._lengths is not None
        self.repeat(rows, self._lengths[rows])

    def advance(self) -> torch.Tensor:
        """Opens the next slot of each row for the token that comes; returns its position, [R, 1] int64."""
        assert self._lengths is not None
        positions = self._lengths.unsqueeze(1)
        self._span = int(self._lengths.max()) + 1
        if self._span > self._keys[0].shape[2]:
            self._grow()
        slots = torch.arange(self._span, device=positions.device)
        self._mask = (slots <= positions).view(-1, 1, 1, self._span)
        return positions

    def commit(self) -> None:
        """Counts the slots opened by ``advance`` as filled."""
        assert self._lengths is not None
        self._lengths = self._lengths + 1

    def _select(self, rows: torch.Tensor) -> None:
        for stored in (self._keys, self._values):
            for layer, tensor in enumerate(stored):
                stored[layer] = tensor[rows]

    def _grow(self) -> None:
        for stored in (self._keys, self._values):
            for layer, tensor in enumerate(stored):
                stored[layer] = torch.nn.functional.pad(tensor, (0, 0, 0, max(BLOCK, self._span // 4)))

    def _attention_of(self, layer: int) -> Any:
        # The argument names are TorchTitan's: attention modules are called with them.
        def forward(
            q_BLNH: torch.Tensor,
            k_BLNH: torch.Tensor,
            v_BLNH: torch.Tensor,
            *,
            scale: float | None = None,
            **_: Any,
        ) -> torch.Tensor:
            if self._lengths is None:
                return self._prompts(layer, q_BLNH, k_BLNH, v_BLNH, scale)
            return self._tokens(layer, q_BLNH, k_BLNH, v_BLNH, scale)

        return forward

    def _prompts(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Returns [U, L, N, H]; right-padding comes after every real token, so causality hides it."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        self._keys[layer], self._values[layer] = key, value
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return out.transpose(1, 2)

    def _tokens(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Returns [R, 1, N, H]; the query heads that share a key head stand as its query positions."""
        assert self._lengths is not None
        keys, values = self._keys[layer], self._values[layer]
        keys[self._rows, :, self._lengths] = key[:, 0]
        values[self._rows, :, self._lengths] = value[:, 0]
        num_rows, _, num_heads, size = query.shape
        out = torch.nn.functional.scaled_dot_product_attention(
            query.reshape(num_rows, keys.shape[1], -1, size),
            keys[:, :, : self._span],
            values[:, :, : self._span],
            attn_mask=self._mask,
            scale=scale,
        )
        return out.reshape(num_rows, 1, num_heads, -1)
