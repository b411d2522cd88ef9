"""Forward pass of the trainer's modules, part by part, for decoding."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["hidden_states", "logits_of", "unwrapped"]


def unwrapped(layer: Any) -> Any:
    """Returns the block inside an activation-checkpoint wrapper."""
    return getattr(layer, "_checkpoint_wrapped_module", layer)


# Calls forward directly: FSDP's hooks would gather weights that are already gathered.
def hidden_states(
    model: Any, layers: list[Any], tokens: torch.Tensor, positions: torch.Tensor | None
) -> torch.Tensor:
    """Returns the output of the last layer, [B, L, D]."""
    hidden: torch.Tensor = model.tok_embeddings.forward(tokens)
    for layer in layers:
        hidden = layer.forward(hidden, None, positions)
    return hidden


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Returns [B, V] float32 for hidden states [B, 1, D]."""
    logits: torch.Tensor = model.lm_head.forward(model.norm.forward(hidden))
    return logits.squeeze(1).float()
