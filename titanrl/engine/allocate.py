"""Allocates a model that was built on the meta device, and fills its buffers."""

from __future__ import annotations

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.moe import MoE
from torchtitan.models.common.rope import RoPE

__all__ = ["allocate", "fill_buffers"]


def allocate(part: Decoder, device: torch.device, *, offload: bool) -> None:
    """Allocates the parameters, uninitialized, and the buffers, filled, of a part built on meta.

    Args:
        part: changed in place.
        device: of this rank.
        offload: whether parameters are in CPU memory; buffers are on the device in any case.
    """
    part.to_empty(device="cpu" if offload else device)
    for module in part.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    if part.enable_weight_tying:
        # to_empty separates tied parameters; the same line is in Decoder.init_states.
        part.tok_embeddings.weight = part.lm_head.weight
    fill_buffers(part, device)


def fill_buffers(part: Decoder, device: torch.device) -> None:
    """Fills the buffers that no file holds: rotary tables, computed, and the experts' token counts, 0."""
    for module in part.modules():
        if isinstance(module, MoE):
            counts = torch.zeros_like(module.tokens_per_expert_E, device=device)
            module.register_buffer("tokens_per_expert_E", counts, persistent=False)
    ropes = [module for module in part.modules() if isinstance(module, RoPE)]
    for rope in ropes[:1]:
        rope.init_states(buffer_device=device)
    for rope in ropes[1:]:
        rope.cache = ropes[0].cache
