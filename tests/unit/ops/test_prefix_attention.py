"""Attention over a prefix tree equals that of separate rows, with its gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrl.ops.prefix_attention import prefix_attention

Tree = list[tuple[int, "Tree"]]
"""Sibling runs: number of tokens and the branches at the end."""

RUNS = st.integers(1, 9)
TREES = st.recursive(
    st.lists(st.tuples(RUNS, st.just([])), max_size=3),
    lambda deeper: st.lists(st.tuples(RUNS, deeper), min_size=1, max_size=3),
    max_leaves=8,
)


def walk(tree: Tree, start: int = 0) -> list[int]:
    """Returns ``visible_until`` of the tree's tokens."""
    line: list[int] = []
    for size, branches in tree:
        below = walk(branches, start + len(line) + size)
        line += [start + len(line) + size + len(below)] * size + below
    return line


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_until: torch.Tensor
) -> torch.Tensor:
    """Returns softmax(query key^T / 2) value over a [T, T] mask."""
    number = torch.arange(len(visible_until))
    sees = (number[:, None] >= number) & (number[:, None] < visible_until)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("qnh,knh->nqk", query, key) / 2
    return torch.einsum("nqk,knh->qnh", scores.masked_fill(~sees, -torch.inf).softmax(-1), value)


def errors(visible_until: list[int], heads: int, key_heads: int, dtype: torch.dtype) -> list[float]:
    """Returns the largest errors of output and gradients, relative to the largest value of each, or to 1."""
    generator = torch.Generator().manual_seed(0)
    line = torch.tensor(visible_until)
    inputs = [
        torch.randn(len(line), count, 4, generator=generator).to(dtype).requires_grad_()
        for count in (heads, key_heads, key_heads)
    ]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out, expected = prefix_attention(*inputs, line, 0.5), reference(*exact, line)
    incoming = torch.randn(out.shape, generator=generator).to(dtype)
    actual = [out, *torch.autograd.grad(out, inputs, incoming)]
    right = [expected, *torch.autograd.grad(expected, exact, incoming.double())]
    with torch.no_grad():
        return [
            float((a - b).abs().max() / b.abs().max().clamp_min(1))
            for a, b in zip(actual, right, strict=True)
        ]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(tree=TREES.filter(bool), heads=st.sampled_from([(4, 4), (6, 2), (3, 1)]))
def test_prefix_tree_attention_equals_masked_attention(tree: Tree, heads: tuple[int, int]) -> None:
    assert max(errors(walk(tree), *heads, torch.float32)) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [5, 1100])
def test_prefix_tree_attention_in_bfloat16_is_close(prompt: int) -> None:
    """Gradients are computed in float32 or, with many keys, in bfloat16, which has 8 bits."""
    tree: Tree = [(prompt, [(3, []), (40, [(7, []), (2, [])])]), (30, [])]
    assert max(errors(walk(tree), 6, 2, torch.bfloat16)) < 2e-2


@pytest.mark.slow
def test_prefix_tree_attention_is_one_custom_op() -> None:
    line = torch.tensor([6, 6, 4, 4, 6, 6])
    inputs = [torch.randn(6, count, 4, requires_grad=True) for count in (4, 2, 2)]
    torch.library.opcheck(torch.ops.titanrl.prefix_attention.default, (*inputs, line, 0.5))
