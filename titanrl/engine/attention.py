"""Attention of micro-batches: lines of distinct tokens, in which a group's prompt stands once.

Everything but attention works on the line token by token. Attention is told by which tokens each is seen, and
is exactly that of separate rows: TorchTitan's FlexAttention with a block mask on CUDA, squares and rectangles
on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torch.nn.attention.flex_attention import BlockMask
from torchtitan.models.common.attention import FlexAttention, create_attention_mask
from torchtitan.protocols.module import Module

from titanrl.ops.prefix_attention import prefix_attention

__all__ = ["LineAttention", "attention_config", "attention_masks", "sees"]


class LineAttention(Module):  # type: ignore[misc]  # torchtitan has no types
    """Causal attention by torch's fused kernel, for the CPU.

    FlexAttention has no CPU backward, varlen needs CUDA.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    # The argument names are TorchTitan's: its sharding specs match by them.
    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: torch.Tensor | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Returns [B, L, N, H].

        Args:
            attention_masks: [1, L] int64 ``visible_until`` of the packed sequence; None: every row
                attends to itself, causally.
        """
        if attention_masks is None:
            query, key, value = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
            out: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa
            )
            return out.transpose(1, 2)
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        width, value = v_BLNH.shape[-1], v_BLNH[0]
        if width < q_BLNH.shape[-1]:
            # The kernel wants heads of one size; latent attention's values are narrower than its keys.
            value = torch.nn.functional.pad(value, (0, q_BLNH.shape[-1] - width))
        rows = prefix_attention(q_BLNH[0], k_BLNH[0], value, attention_masks[0], scale)
        return rows[..., :width].unsqueeze(0)


def attention_config(device_type: str) -> Module.Config:
    """Returns the inner attention for a device.

    TorchTitan's FlexAttention on CUDA, LineAttention elsewhere.
    """
    return FlexAttention.Config() if device_type == "cuda" else LineAttention.Config()


def attention_masks(config: Module.Config, visible_until: torch.Tensor) -> torch.Tensor | BlockMask:
    """Returns what the model's forward takes as ``attention_masks`` for this inner attention.

    Args:
        visible_until: [n, T] int64, of one line, or of those of a pipeline's micro-batches.
    """
    if not isinstance(config, FlexAttention.Config):
        return visible_until
    lines, length = visible_until.shape
    mask: BlockMask = create_attention_mask(
        sees(visible_until),
        lines,
        None,
        length,
        length,
        device=visible_until.device,
        BLOCK_SIZE=config.block_size,
    )
    return mask


def sees(visible_until: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Returns FlexAttention's mask function of lines [n, T]: whether a query sees a key."""

    def mask(line: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (query < visible_until[line, key])

    return mask
