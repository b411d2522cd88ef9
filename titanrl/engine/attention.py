"""Attention of micro-batches: packed sequences of distinct tokens, in which a group shares one prompt.

Everything but attention works on the packed sequence token by token. Attention gets the span of tokens to
which each token is visible and equals that of separate rows: TorchTitan's FlexAttention with a block mask on
CUDA, causal and full blocks of torch's fused kernel on the CPU.
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

__all__ = ["PackedAttention", "attention_config", "attention_masks", "mask_mod"]


class PackedAttention(Module):  # type: ignore[misc]  # torchtitan has no types
    """Causal attention by torch's fused kernel, for the CPU.

    FlexAttention has no backward pass on a CPU, and varlen attention needs CUDA.
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
            q_BLNH: queries.
            k_BLNH: keys, with N or fewer heads.
            v_BLNH: values, with as many heads as the keys.
            attention_masks: [1, L] int64 ``visible_until`` of the packed sequence; None: every row
                attends to itself, causally.
            scale: of the scores; None: 1 / sqrt(H).
            enable_gqa: whether keys may have fewer heads, where there is no mask.
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
            # The kernel needs heads of one size; latent attention's values are narrower than its keys.
            value = torch.nn.functional.pad(value, (0, q_BLNH.shape[-1] - width))
        rows = prefix_attention(q_BLNH[0], k_BLNH[0], value, attention_masks[0], scale)
        return rows[..., :width].unsqueeze(0)


def attention_config(device_type: str) -> Module.Config:
    """Returns the inner attention: TorchTitan's FlexAttention on CUDA, PackedAttention elsewhere."""
    return FlexAttention.Config() if device_type == "cuda" else PackedAttention.Config()


def attention_masks(config: Module.Config, visible_until: torch.Tensor) -> torch.Tensor | BlockMask:
    """Returns the ``attention_masks`` argument of the model's forward pass.

    Args:
        config: the inner attention.
        visible_until: [n, T] int64, of one packed sequence, or of a pipeline's n micro-batches.
    """
    if not isinstance(config, FlexAttention.Config):
        return visible_until
    batch, length = visible_until.shape
    mask: BlockMask = create_attention_mask(
        mask_mod(visible_until),
        batch,
        None,
        length,
        length,
        device=visible_until.device,
        BLOCK_SIZE=config.block_size,
    )
    return mask


def mask_mod(visible_until: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Returns FlexAttention's mask_mod for ``visible_until`` [n, T]: whether a query attends to a key."""

    def mask(batch: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (query < visible_until[batch, key])

    return mask
