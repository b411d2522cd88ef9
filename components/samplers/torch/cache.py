"""Key-value cache for batched decoding, and the attention that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Cache", "SlotCache"]

BLOCK = 64
"""Smallest number of tokens by which the cache grows."""


class Cache:
    """Keys and values of every layer, [R, kv heads, S, H]; row r stores its position p in slot p.

    All prompts are computed in one pass; ``repeat`` then copies each prompt's entries to its responses, and
    every further pass adds one token per row. Slots beyond a row's length are undefined and never read.
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
        """Replaces the inner attention of layer i with one that fills and reads this cache, within the
        block.
        """
        for layer, attention in enumerate(attentions):
            attention.forward = self._attention_of(layer)
        try:
            yield
        finally:
            for attention in attentions:
                del attention.forward

    def repeat(self, rows: torch.Tensor, lengths: torch.Tensor) -> None:
        """Creates the decoding rows: row r continues prompt ``rows[r]``, which has ``lengths[r]`` tokens."""
        self._select(rows)
        self._lengths = lengths
        self._rows = torch.arange(len(rows), device=rows.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Drops all rows except ``rows``, [R'] int64."""
        assert self._lengths is not None
        self.repeat(rows, self._lengths[rows])

    def advance(self) -> torch.Tensor:
        """Opens the next slot of each row for the next token; returns its position, [R, 1] int64."""
        assert self._lengths is not None
        positions = self._lengths.unsqueeze(1)
        self._span = int(self._lengths.max()) + 1
        if self._span > self._keys[0].shape[2]:
            self._grow()
        slots = torch.arange(self._span, device=positions.device)
        self._mask = (slots <= positions).view(-1, 1, 1, self._span)
        return positions

    def commit(self) -> None:
        """Marks the slots that ``advance`` opened as filled."""
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
        # TorchTitan calls attention modules with these argument names.
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
        """Computes the attention over the prompts, [U, L, N, H]; the causal mask hides the padding on the
        right.
        """
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        self._keys[layer], self._values[layer] = key, value
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return out.transpose(1, 2)

    def _tokens(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Computes the attention of one token per row, [R, 1, N, H]; query heads that share a key head are
        laid out as query positions.
        """
        assert self._lengths is not None
        keys, values = self._keys[layer][: len(query)], self._values[layer][: len(query)]
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


class SlotCache(Cache):
    """Cache whose rows come and go at any time. It grows as needed and keeps its memory until it is empty."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(num_layers)
        self._num_layers = num_layers

    @property
    def num_rows(self) -> int:
        return 0 if self._lengths is None else len(self._lengths)

    def append(self, prompts: Cache, rows: torch.Tensor, lengths: torch.Tensor) -> None:
        """Adds a row for each of ``rows``, which continues that prompt of another cache.

        Args:
            prompts: a cache after the pass over the prompts.
            rows: [R] int64, index of each row's prompt.
            lengths: [R] int64, tokens of each row's prompt.
        """
        start, end = self.num_rows, self.num_rows + len(rows)
        for own, others in ((self._keys, prompts._keys), (self._values, prompts._values)):
            for layer, other in enumerate(others):
                if start == 0:
                    own[layer] = other[rows]
                    continue
                stored, width = own[layer], other.shape[2]
                more_rows = max(end - len(stored), len(stored) // 2) if end > len(stored) else 0
                more_slots = max(width - stored.shape[2], 0)
                if more_rows or more_slots:
                    stored = torch.nn.functional.pad(stored, (0, 0, 0, more_slots, 0, 0, 0, more_rows))
                stored[start:end, :, :width] = other[rows]
                own[layer] = stored
        self._lengths = lengths if self._lengths is None else torch.cat([self._lengths, lengths])
        self._rows = torch.arange(end, device=rows.device)

    def remove(self, row: int) -> None:
        """Drops a row; the last row takes its index."""
        assert self._lengths is not None
        last = self.num_rows - 1
        if last == 0:
            self._keys, self._values = (
                [torch.empty(0)] * self._num_layers,
                [torch.empty(0)] * self._num_layers,
            )
            self._lengths = None
            return
        if row != last:
            for stored in (*self._keys, *self._values):
                stored[row] = stored[last]
            self._lengths[row] = self._lengths[last]
        self._lengths, self._rows = self._lengths[:last], self._rows[:last]
