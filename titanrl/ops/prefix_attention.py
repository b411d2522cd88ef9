"""Exact attention over packed sequences that share prefixes; a shared prefix is computed once.

A packed sequence is a walk through a prefix tree. A token is visible to itself and to the tokens after it up
to ``visible_until``: the rest of its run of tokens and all branches that continue it. So attention consists
of a causal block for each run, and a full block for each run that has branches: the branches' queries on the
run's keys. Both use torch's fused kernel, on many runs at a time, and are merged by their logsumexps.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch

__all__ = ["prefix_attention"]

# torch 2.13 has no public attention on a CPU that returns logsumexps and has a backward pass.
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

FLOAT32_KEYS = 1024
"""Gradients of attention to at most so many keys are in float32: the CPU kernel's backward pass takes
four times as long in bfloat16 at 100 keys, and equally long near 1000."""


Run: TypeAlias = tuple[int, int, int, int]
"""First query, number of queries, first key, number of keys; tokens of the packed sequence."""


class Block(NamedTuple):
    """S causal or full blocks of m queries on n keys each, which are computed at one time.

    Indices refer to the [T * K] rows of a packed sequence of T tokens with K heads of keys, a token's heads
    side by side.
    """

    query: torch.Tensor
    """[K * S * m] int64; a shorter run is padded with its last token."""
    key: torch.Tensor
    """[K * S * n] int64, padded likewise."""
    unpadded: torch.Tensor
    """[K * M] int64, the positions in ``query`` that are not padding."""
    num_queries: int
    num_keys: int
    is_causal: bool
    """Whether queries and keys are the same tokens, and attention is causal."""


def prefix_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor, scale: float
) -> torch.Tensor:
    """Returns [T, N, H], softmax(scale * query key^T) value of each token over the tokens visible to it.

    Args:
        query: [T, N, H] on the CPU; N is a multiple of K.
        key: [T, K, H], of the same dtype.
        value: [T, K, H], of the same dtype.
        visible_until: [T] int64: token t is visible to tokens t .. visible_until[t] - 1; these spans are
            nested or disjoint.
        scale: of the scores.
    """
    out: torch.Tensor = _attend(query, key, value, visible_until, scale)[0]
    return out


@torch.library.custom_op("titanrl::prefix_attention", mutates_args=(), device_types="cpu")
def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output [T, N, H] and the logsumexps of the scores, [T * K, N / K] float32."""
    queries, keys, values = _rows(query, key), key.flatten(0, 1), value.flatten(0, 1)
    out = queries.new_empty(queries.shape, dtype=torch.float32)
    lse = out.new_empty(queries.shape[:2])
    for block in _blocks(visible_until.numpy().tobytes(), key.shape[1]):
        part, block_lse = _forward(*_inputs(block, queries, keys, values), 0.0, block.is_causal, scale=scale)
        rows = block.query.index_select(0, block.unpadded)
        part = _flat(part).index_select(0, block.unpadded).float()
        block_lse = _flat(block_lse).index_select(0, block.unpadded)
        if not block.is_causal:
            before = lse.index_select(0, rows)
            merged = torch.logaddexp(before, block_lse)
            part.mul_((block_lse - merged).exp_().unsqueeze(-1))
            part.addcmul_(out.index_select(0, rows), (before - merged).exp_().unsqueeze(-1))
            block_lse = merged
        out.index_copy_(0, rows, part)
        lse.index_copy_(0, rows, block_lse)
    return out.to(query.dtype).view_as(query), lse


@_attend.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (query.shape[0] * key.shape[1], query.shape[1] // key.shape[1])
    return torch.empty_like(query), query.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("titanrl::prefix_attention_backward", mutates_args=(), device_types="cpu")
def _gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    visible_until: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of query, key and value.

    Given the final outputs and logsumexps, each block's gradients are its part of the total gradients.
    """
    queries, keys, values = _rows(query, key), key.flatten(0, 1), value.flatten(0, 1)
    outs, gradients = out.view_as(queries), gradient.reshape(queries.shape)
    sums = [torch.empty_like(x, dtype=torch.float32) for x in (queries, keys, values)]
    for block in _blocks(visible_until.numpy().tobytes(), key.shape[1]):
        dtype = torch.float32 if block.num_keys <= FLOAT32_KEYS else query.dtype
        rows = block.query.index_select(0, block.unpadded)
        # Padding has no incoming gradient, so that the padded token gets none from it.
        incoming = gradients.new_zeros((len(block.query), *queries.shape[1:]), dtype=dtype)
        incoming.index_copy_(0, block.unpadded, gradients.index_select(0, rows).to(dtype))
        parts = _backward(
            _heads(incoming, block.num_queries),
            *(x.to(dtype) for x in _inputs(block, queries, keys, values)),
            _heads(outs.index_select(0, block.query).to(dtype), block.num_queries),
            _heads(lse.index_select(0, block.query), block.num_queries),
            0.0,
            block.is_causal,
            scale=scale,
        )
        by_query, by_key, by_value = (_flat(x) for x in parts)
        indexed = [(by_query, block.query), (by_key.sum(1), block.key), (by_value.sum(1), block.key)]
        for total, (part, index) in zip(sums, indexed, strict=True):
            if len(part) != len(block.unpadded) and index is block.query:
                part, index = part.index_select(0, block.unpadded), rows
            if not block.is_causal:
                part = part + total.index_select(0, index)
            total.index_copy_(0, index, part.to(total.dtype))
    by_query, by_key, by_value = sums
    return (
        by_query.to(query.dtype).view_as(query),
        by_key.to(key.dtype).view_as(key),
        by_value.to(value.dtype).view_as(value),
    )


@_gradients.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    query, key, value, visible_until, out, lse = ctx.saved_tensors
    return (*_gradients(gradient, query, key, value, out, lse, visible_until, ctx.scale), None, None)


_attend.register_autograd(_differentiate, setup_context=_save)


def _rows(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns queries [T, N, H] as [T * K, N / K, H]: queries that share a head of keys are one row."""
    return query.reshape(query.shape[0] * key.shape[1], -1, query.shape[2])


def _heads(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns rows [K * S * tokens, heads, ...] in the kernel's layout: [K * S, heads, tokens, ...]."""
    return x.view(-1, tokens, *x.shape[1:]).transpose(1, 2)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Returns the kernel's [K * S, heads, tokens, ...] as rows [K * S * tokens, heads, ...]."""
    return x.transpose(1, 2).flatten(0, 1)


def _inputs(
    block: Block, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns query, key and value [K * S, N / K, m or n, H]; heads share their keys' memory."""
    shape = (-1, queries.shape[1], -1, -1)
    query = _heads(queries.index_select(0, block.query), block.num_queries)
    key, value = (
        _heads(x.index_select(0, block.key).unsqueeze(1), block.num_keys).expand(shape)
        for x in (keys, values)
    )
    return query, key, value


@lru_cache(maxsize=64)
def _blocks(visible_until: bytes, heads: int) -> tuple[Block, ...]:
    """Returns the causal blocks, in which each token occurs once, then the full blocks.

    Cached because all layers of a model use the same packed sequence.
    """
    visible = torch.frombuffer(bytearray(visible_until), dtype=torch.int64)
    ends, sizes = torch.unique_consecutive(visible, return_counts=True)
    causal: dict[int, list[Run]] = defaultdict(list)
    full: dict[tuple[int, int, int], list[Run]] = defaultdict(list)
    open_ends: list[int] = []
    start = 0
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        stop = start + size
        causal[(size - 1).bit_length()].append((start, size, start, size))
        if stop < end:
            # Of one size, because keys are never padded, and of one depth: these branches are disjoint.
            shape = len(open_ends), size, (end - stop).bit_length()
            full[shape].append((stop, end - stop, start, size))
            open_ends.append(end)
        start = stop
    return (
        *(_block(runs, heads, is_causal=True) for runs in causal.values()),
        *(_block(runs, heads, is_causal=False) for runs in full.values()),
    )


def _block(runs: list[Run], heads: int, *, is_causal: bool) -> Block:
    first_query, queries, first_key, keys = torch.tensor(runs).T.unsqueeze(-1)
    width, length = int(queries.max()), int(keys.max())

    def index(first: torch.Tensor, count: torch.Tensor, size: int) -> torch.Tensor:
        token = first + torch.arange(size).minimum(count - 1)
        return (token * heads + torch.arange(heads)[:, None, None]).flatten()

    query = index(first_query, queries, width)
    is_real = (torch.arange(width) < queries).expand(heads, -1, -1)
    return Block(
        query=query,
        key=query if is_causal else index(first_key, keys, length),
        unpadded=is_real.flatten().nonzero().squeeze(1),
        num_queries=width,
        num_keys=length,
        is_causal=is_causal,
    )
