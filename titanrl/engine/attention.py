"""Attention of packed rows: a micro-batch is one line of distinct tokens, a group's prompt standing once.

Everything but attention works on the line token by token. Attention looks at rows, so its inputs are laid out
as rows, a shared prompt repeated in each, and its outputs are picked back from them. On CUDA TorchTitan's
FlexAttention reads the line directly, with the same rows written as a block mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torch.nn.attention.flex_attention import BlockMask
from torchtitan.models.common.attention import FlexAttention, create_attention_mask
from torchtitan.protocols.module import Module

__all__ = ["RowAttention", "RowLayout", "attention_config", "attention_masks"]

FLOAT32_LENGTH = 1024
"""Rows up to this length attend in float32: the CPU kernel's backward pass takes four times as long in
bfloat16 at 100 tokens, and as long near 1000."""


class RowLayout(NamedTuple):
    """Where the T tokens of a line stand in R rows of L places."""

    token: torch.Tensor
    """[1, R * L] int64, the token at each place; padding repeats any token, which nothing reads."""
    place: torch.Tensor
    """[1, T] int64, the place whose output is the token's: in the first of the rows that share it."""
    copy_place: torch.Tensor
    """[1, M] int64, every further place of a shared token."""
    copy_token: torch.Tensor
    """[1, M] int64, the token that stands there."""
    row: torch.Tensor
    """[1, T] int64, the row a token belongs to; -1 - g for a prompt that the rows of group g share."""
    group: torch.Tensor
    """[1, T] int64, the token's group."""
    num_rows: torch.Tensor
    """[1] int64, R; a tensor, as pipeline stages pass tensors only."""


class RowAttention(Module):  # type: ignore[misc]  # torchtitan has no types
    """Causal attention by torch's fused kernel, for the CPU.

    FlexAttention has no CPU backward, varlen needs CUDA.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layouts: Sequence[RowLayout] = ()
        """Of a pipeline's micro-batches.

        Its stages are handed tensors only, so a mask is a number in here.
        """

    # The argument names are TorchTitan's: its sharding specs match by them.
    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: RowLayout | torch.Tensor | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Returns [B, L, N, H]; without a layout every row attends to itself, causally."""
        layout = attention_masks
        if isinstance(layout, torch.Tensor):
            layout = self.layouts[int(layout)]
        inputs: tuple[torch.Tensor, ...] = (q_BLNH, k_BLNH, v_BLNH)
        if layout is not None:
            inputs = tuple(to_rows(x, layout) for x in inputs)
        if q_BLNH.dtype == torch.bfloat16 and inputs[0].shape[1] <= FLOAT32_LENGTH:
            inputs = tuple(x.float() for x in inputs)
        query, key, value = (x.transpose(1, 2) for x in inputs)
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa
        )
        out = out.transpose(1, 2).to(q_BLNH.dtype)
        return out if layout is None else from_rows(out, layout)


class _ToRows(torch.autograd.Function):
    """[1, T, N, H] -> [R, L, N, H]. Backward: each token's own place, plus the copies of a shared prompt."""

    @staticmethod
    def forward(ctx: Any, line: torch.Tensor, layout: RowLayout) -> torch.Tensor:
        ctx.layout = layout
        rows = line[0].index_select(0, layout.token[0])
        return rows.view(int(layout.num_rows), -1, *line.shape[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout, (rows,) = ctx.layout, gradients
        flat = rows.reshape(-1, *rows.shape[2:])
        line = flat.index_select(0, layout.place[0])
        if layout.copy_place.numel():
            line.index_add_(0, layout.copy_token[0], flat.index_select(0, layout.copy_place[0]))
        return line.unsqueeze(0), None


class _FromRows(torch.autograd.Function):
    """[R, L, N, H] -> [1, T, N, H]. Backward: one place each, zero at copies and padding."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: RowLayout) -> torch.Tensor:
        ctx.layout, ctx.shape = layout, rows.shape
        return rows.reshape(-1, *rows.shape[2:]).index_select(0, layout.place[0]).unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (line,) = gradients
        rows = line.new_zeros(ctx.shape)
        rows.view(-1, *ctx.shape[2:]).index_copy_(0, ctx.layout.place[0], line[0])
        return rows, None


to_rows: Callable[[torch.Tensor, RowLayout], torch.Tensor] = _ToRows.apply
from_rows: Callable[[torch.Tensor, RowLayout], torch.Tensor] = _FromRows.apply


def attention_config(device_type: str) -> Module.Config:
    """Returns the inner attention for a device.

    TorchTitan's FlexAttention on CUDA, RowAttention elsewhere.
    """
    return FlexAttention.Config() if device_type == "cuda" else RowAttention.Config()


def attention_masks(
    config: Module.Config, layouts: Sequence[RowLayout], numbers: torch.Tensor | None = None
) -> RowLayout | torch.Tensor | BlockMask:
    """Returns what the model's forward takes as ``attention_masks`` for this inner attention.

    Args:
        layouts: one, or those of a pipeline's micro-batches, of equal T. numbers: [n] int64, 0 .. n-1, then.
    """
    if not isinstance(config, FlexAttention.Config):
        return layouts[0] if numbers is None else numbers.unsqueeze(1)
    row = torch.cat([layout.row for layout in layouts])
    group = torch.cat([layout.group for layout in layouts])

    def attends(line: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        mine = row[line, query] == row[line, key]
        prompt = (row[line, key] < 0) & (group[line, query] == group[line, key])
        return (query >= key) & (mine | prompt)

    lines, length = row.shape
    mask: BlockMask = create_attention_mask(
        attends, lines, None, length, length, device=row.device, BLOCK_SIZE=config.block_size
    )
    return mask
