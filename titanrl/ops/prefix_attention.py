"""Exact attention over packed sequences that share prefixes; a shared prefix is computed once.

A packed sequence is a walk through a prefix tree: a token is seen by itself and by those after it
up to ``visible_until``, which are the rest of its own run of tokens and all that branches off from there.
So attention is a causal block for each run, and a full block for each run that has branches: the branches'
queries on the run's keys. Both are torch's fused kernel, on many runs at a time, joined by their normalisers.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch

__all__ = ["prefix_attention"]

# Torch 2.13 has no public attention on a CPU that returns the normalisers and has a backward pass.
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

FLOAT32_KEYS = 1024
"""Gradients of attention to up to so many keys are computed in float32: the CPU kernel's backward pass takes
four times as long in bfloat16 at 100 keys, and as long near 1000."""


Run: TypeAlias = tuple[int, int, int, int]
"""First query, number of queries, first key, number of keys; tokens of the line."""


class Block(NamedTuple):
    """S squares, or rectangles, of m queries on n keys each, which are computed at one time.

    Indices are of the [T * K] rows of a line of T tokens with K heads of keys, a token's heads side by side.
    """

    query: torch.Tensor
    """[K * S * m] int64; a run of fewer tokens is filled up with its last."""
    key: torch.Tensor
    """[K * S * n] int64, likewise."""
    place: torch.Tensor
    """[K * M] int64, the places in ``query`` that are no filling."""
    num_queries: int
    num_keys: int
    is_square: bool
    """Queries and keys are the same tokens, and attention is causal."""


def prefix_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor, scale: float
) -> torch.Tensor:
    """Returns [T, N, H], softmax(scale * query key^T) value of each token over the tokens that it sees.

    Args:
        query: [T, N, H] on the CPU; N is a multiple of K. key, value: [T, K, H], of the same dtype.
        visible_until: [T] int64: token t is seen by tokens t .. visible_until[t] - 1; such spans are nested
            or disjoint.
    """
    out: torch.Tensor = _attend(query, key, value, visible_until, scale)[0]
    return out


@torch.library.custom_op("titanrl::prefix_attention", mutates_args=(), device_types="cpu")
def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [T, N, H] and the logarithms of its normalisers, [T * K, N / K] float32."""
    queries, keys, values = _rows(query, key), key.flatten(0, 1), value.flatten(0, 1)
    out = queries.new_empty(queries.shape, dtype=torch.float32)
    lse = out.new_empty(queries.shape[:2])
    for block in _blocks(visible_until.numpy().tobytes(), key.shape[1]):
        part, norm = _forward(*_inputs(block, queries, keys, values), 0.0, block.is_square, scale=scale)
        rows = block.query.index_select(0, block.place)
        part = _flat(part).index_select(0, block.place).float()
        norm = _flat(norm).index_select(0, block.place)
        if not block.is_square:
            before = lse.index_select(0, rows)
            both = torch.logaddexp(before, norm)
            part.mul_((norm - both).exp_().unsqueeze(-1))
            part.addcmul_(out.index_select(0, rows), (before - both).exp_().unsqueeze(-1))
            norm = both
        out.index_copy_(0, rows, part)
        lse.index_copy_(0, rows, norm)
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

    With the outputs and normalisers of the whole, each block's gradients are its share of the whole's.
    """
    queries, keys, values = _rows(query, key), key.flatten(0, 1), value.flatten(0, 1)
    outs, gradients = out.view_as(queries), gradient.reshape(queries.shape)
    sums = [torch.empty_like(x, dtype=torch.float32) for x in (queries, keys, values)]
    for block in _blocks(visible_until.numpy().tobytes(), key.shape[1]):
        dtype = torch.float32 if block.num_keys <= FLOAT32_KEYS else query.dtype
        rows = block.query.index_select(0, block.place)
        # What comes from filling has no gradient, so that what filled it gets none.
        incoming = gradients.new_zeros((len(block.query), *queries.shape[1:]), dtype=dtype)
        incoming.index_copy_(0, block.place, gradients.index_select(0, rows).to(dtype))
        parts = _backward(
            _heads(incoming, block.num_queries),
            *(x.to(dtype) for x in _inputs(block, queries, keys, values)),
            _heads(outs.index_select(0, block.query).to(dtype), block.num_queries),
            _heads(lse.index_select(0, block.query), block.num_queries),
            0.0,
            block.is_square,
            scale=scale,
        )
        by_query, by_key, by_value = (_flat(x) for x in parts)
        found = [(by_query, block.query), (by_key.sum(1), block.key), (by_value.sum(1), block.key)]
        for total, (part, index) in zip(sums, found, strict=True):
            if len(part) != len(block.place) and index is block.query:
                part, index = part.index_select(0, block.place), rows
            if not block.is_square:
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    query, key, value, visible_until, out, lse = ctx.saved_tensors
    return (*_gradients(gradient, query, key, value, out, lse, visible_until, ctx.scale), None, None)


_attend.register_autograd(_differentiate, setup_context=_keep)


def _rows(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns queries [T, N, H] as [T * K, N / K, H]: those that share a head of keys."""
    return query.reshape(query.shape[0] * key.shape[1], -1, query.shape[2])


def _heads(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns rows [K * S * tokens, heads, ...] as the kernel takes them: [K * S, heads, tokens, ...]."""
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
    """Returns the squares, in which each token stands once, then the rectangles.

    The layers of a model ask for the same line one after the other.
    """
    line = torch.frombuffer(bytearray(visible_until), dtype=torch.int64)
    ends, sizes = torch.unique_consecutive(line, return_counts=True)
    squares: dict[int, list[Run]] = defaultdict(list)
    rectangles: dict[tuple[int, int, int], list[Run]] = defaultdict(list)
    around: list[int] = []
    start = 0
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        while around and around[-1] <= start:
            around.pop()
        stop = start + size
        squares[(size - 1).bit_length()].append((start, size, start, size))
        if stop < end:
            # Of one size, as keys are never filled up, and of one depth: such branches lie apart.
            shape = len(around), size, (end - stop).bit_length()
            rectangles[shape].append((stop, end - stop, start, size))
            around.append(end)
        start = stop
    return (
        *(_block(runs, heads, is_square=True) for runs in squares.values()),
        *(_block(runs, heads, is_square=False) for runs in rectangles.values()),
    )


def _block(runs: list[Run], heads: int, *, is_square: bool) -> Block:
    first_query, queries, first_key, keys = torch.tensor(runs).T.unsqueeze(-1)
    width, length = int(queries.max()), int(keys.max())

    def index(first: torch.Tensor, count: torch.Tensor, size: int) -> torch.Tensor:
        token = first + torch.arange(size).minimum(count - 1)
        return (token * heads + torch.arange(heads)[:, None, None]).flatten()

    query = index(first_query, queries, width)
    real = (torch.arange(width) < queries).expand(heads, -1, -1)
    return Block(
        query=query,
        key=query if is_square else index(first_key, keys, length),
        place=real.flatten().nonzero().squeeze(1),
        num_queries=width,
        num_keys=length,
        is_square=is_square,
    )
