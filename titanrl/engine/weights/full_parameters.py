"""A full copy of a sharded model on every rank, for decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.models.common.decoder import Decoder

from titanrl.engine.allocate import fill_buffers
from titanrl.engine.attention import attention_config
from titanrl.engine.heads.token import TokenHead
from titanrl.engine.mesh import Mesh
from titanrl.engine.model import Model
from titanrl.engine.weights.stream import parameters, precision
from titanrl.models.spec import model_spec

__all__ = ["full_parameters"]


@contextmanager
def full_parameters(
    model: Model, mesh: Mesh, *, max_length: int, dtype: str, head_dtype: torch.dtype | None = None
) -> Iterator[Decoder]:
    """Yields an unsharded language model with the weights of ``model``; a collective.

    Args:
        model: the sharded model.
        mesh: of its ranks.
        max_length: positions of the rotary table, tokens.
        dtype: of the copy's weights.
        head_dtype: of its logits; None: ``dtype``.
    """
    config = model.config
    spec = model_spec(
        config,
        attention=attention_config(mesh.device.type),
        head=TokenHead.Config(in_features=config.dim, out_features=config.vocab_size, dtype=head_dtype),
        max_length=max_length,
        tied=model.tied,
    )
    with torch.device("meta"):
        decoder: Decoder = spec.model.build()
    compute = TORCH_DTYPE_MAP[dtype]
    # The received tensors become the parameters: nothing is copied.
    tensors = {
        name: tensor.to(dtype=precision(name, compute))
        for name, tensor in parameters(model, mesh.pp_group, compute)
    }
    missing, unexpected = decoder.load_state_dict(tensors, strict=False, assign=True)
    assert missing == (["lm_head.weight"] if model.tied else []), missing
    assert not unexpected, unexpected
    if model.tied:
        decoder.lm_head.weight = decoder.tok_embeddings.weight
    fill_buffers(decoder, mesh.device)
    decoder.requires_grad_(False)
    with torch.no_grad():
        yield decoder
